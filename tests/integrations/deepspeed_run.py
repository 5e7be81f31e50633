"""DeepSpeed ZeRO-3 on two gloo ranks: the losses of three steps, by how they are balanced.

``torchrun --nproc-per-node 2 tests/integrations/deepspeed_run.py`` prints one JSON object.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist

from trimtab.demo.tiny_models import tiny_model
from trimtab.planning.settings import PlanSettings
from trimtab.runtime.balancer import BatchBalancer
from trimtab.runtime.balancer_settings import BalancerSettings, EncoderBalanceSettings
from trimtab.runtime.vision_balance import balance_model_vision

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp2_loop.py"
STEPS, MICRO_BATCHES = 3, 2
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": MICRO_BATCHES,
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
}


def example() -> Any:
    """The plain loop's module, for its batches."""
    spec = importlib.util.spec_from_file_location("fsdp2_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def losses(mode: Any, *, encoder: bool) -> dict[str, Any]:
    """Of each step over all ranks, and what moved."""
    model: Any = tiny_model("qwen2_5_vl").train()
    vision = None
    if encoder:
        vision = balance_model_vision(model, dist.new_group(), EncoderBalanceSettings(threshold=0.0))
    control = dist.new_group(backend="gloo")
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), config=CONFIG
    )
    settings = BalancerSettings(mode=mode, plan=PlanSettings(sync="layer"))
    balancer = BatchBalancer.for_model(model.config, control, settings)
    found = []
    batches = example().batches(model.config, dist.get_rank(), STEPS * MICRO_BATCHES)
    for step in balancer.steps(batches, micro_batches=MICRO_BATCHES):
        total = torch.zeros(())
        for batch in step.micro_batches:
            loss = engine(**batch, num_items_in_batch=step.denominator).loss
            engine.backward(loss * dist.get_world_size(), scale_wrt_gas=False)  # averaged over ranks; wanted: the sum
            engine.step()
            total += loss.detach()
        dist.all_reduce(total)
        found.append(float(total))
    engine.destroy()
    return {"losses": found, "batches": balancer.summary(), "encoder": vision.summary() if vision else ""}


def main() -> None:
    """All three, one after the other."""
    # it would compile a kernel for ranks of one host, which they do without
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed("gloo")
    outcome = {
        "off": losses("off", encoder=False),
        "on": losses("on", encoder=False),
        "on, encoder": losses("on", encoder=True),
        "off, encoder": losses("off", encoder=True),
    }
    if dist.get_rank() == 0:
        print(json.dumps(outcome))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
