"""Qwen2.5-VL: Qwen2-VL's processors, and the seconds of each temporal patch enter its positions."""

from dataclasses import replace

from trimtab.families.qwen2_vl import QWEN2_VL

QWEN2_5_VL = replace(
    QWEN2_VL,
    name="qwen2_5_vl",
    model_types=("qwen2_5_vl",),
    batch_rows={**QWEN2_VL.batch_rows, "second_per_grid_ts": "visuals"},
    defaults=replace(QWEN2_VL.defaults, family="qwen2_5_vl"),
)
