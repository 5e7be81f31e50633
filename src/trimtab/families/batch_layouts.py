"""Which batch layouts there are."""

from __future__ import annotations

from trimtab.errors import UnknownModelError
from trimtab.families.batch_layout import BatchLayout
from trimtab.families.internvl import INTERNVL_BATCHES
from trimtab.families.llava_onevision import LLAVA_ONEVISION_BATCHES
from trimtab.families.qwen_batches import QWEN2_5_VL_BATCHES, QWEN2_VL_BATCHES, QWEN3_VL_BATCHES

BATCH_LAYOUTS: dict[str, BatchLayout] = {
    "qwen2_vl": QWEN2_VL_BATCHES,
    "qwen2_5_vl": QWEN2_5_VL_BATCHES,
    "qwen3_vl": QWEN3_VL_BATCHES,
    "qwen3_vl_moe": QWEN3_VL_BATCHES,
    "internvl": INTERNVL_BATCHES,
    "internvl_chat": INTERNVL_BATCHES,
    "llava_onevision": LLAVA_ONEVISION_BATCHES,
}
"""By ``model_type`` of a checkpoint's ``config.json``."""


def batch_layout_for(model_type: str) -> BatchLayout:
    """The batch layout of a ``model_type``.

    Raises:
        UnknownModelError: there is none; the message lists those known.
    """
    if model_type not in BATCH_LAYOUTS:
        raise UnknownModelError(
            f"batches of model type {model_type!r} are not described; known: {', '.join(BATCH_LAYOUTS)}"
        )
    return BATCH_LAYOUTS[model_type]
