"""What each compared strategy does with loading, rollout and the plan of a step."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from trimtab.errors import SettingsError
from trimtab.schema.near_names import did_you_mean
from trimtab.schema.plans import Sync

Loader = Literal["controller", "ranks", "shadow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStrategy:
    """One row of a comparison.

    Attributes:
        name: as the user writes it.
        plan: the planner's strategy for inference and update.
        loader: "controller": one host decodes and ships everything; "ranks": each rank decodes what a sampler deals
            it, and redistribution follows; "shadow": decoded wherever a core is free, pulled by the rank that uses it.
        balance_vision: the encoder's work is spread over ranks; otherwise it runs where its sample is.
        balance_rollout: prompts go to engines by predicted cost; otherwise in equal blocks.
        packing: of a pipeline: "random" batches, padded, or packs by "isf"; None: no pipeline.
        partition: of a pipeline's layers: by "parameters", by "time" with every layer recomputed, or "joint" with the
            choice of layers that recompute.
    """

    name: str
    plan: str
    loader: Loader
    balance_vision: bool = False
    balance_rollout: bool = False
    packing: Literal["random", "isf"] | None = None
    partition: Literal["parameters", "time", "joint"] = "parameters"


_PLANS: dict[str, tuple[str, bool, bool]] = {
    # plan for GRPO, balance_vision, balance_rollout
    "as-is": ("as-is", False, False),
    "verl-bucketing": ("equal-count", False, False),
    "loongforge": ("loongforge", True, False),
    "loader-only": ("equal-count", False, False),
    "whole-sample": ("whole-sample", True, True),
    "adaptive-only": ("adaptive", True, True),
    "all": ("adaptive", True, True),
}
_RANDOM = SimulatedStrategy(name="random", plan="as-is", loader="ranks", packing="random")
_ISF = replace(_RANDOM, name="isf", packing="isf")
_PIPELINES: dict[str, SimulatedStrategy] = {
    each.name: each
    for each in (
        _RANDOM,
        _ISF,
        replace(_ISF, name="isf+stages", partition="time"),
        replace(_ISF, name="isf+stages+recompute", partition="joint"),
    )
}
PIPELINE_STRATEGIES = tuple(_PIPELINES)
KNOWN = ("as-is", "verl-bucketing", "uniform-2", "uniform-4", "uniform-8", *list(_PLANS)[2:])


def strategy_named(name: str, task: str = "grpo", sync: Sync = "layer") -> SimulatedStrategy:
    """A strategy; "uniform-N" may name any degree.

    Where a strategy leaves loading as it is, that is one controller in GRPO (verl) and every rank's own loader in
    supervised training; "loader-only" leaves the partition as it is: bucketed in GRPO, as dealt in supervised training.
    Where ranks meet once a step, samples cannot be shared, and adaptive plans are plans of whole samples.

    Raises:
        SettingsError: there is none of that name.
    """
    usual: Loader = "controller" if task == "grpo" else "ranks"
    if re.fullmatch(r"uniform-[1-9][0-9]*", name):
        return SimulatedStrategy(name=name, plan=name, loader=usual)
    if name in _PIPELINES:
        return _PIPELINES[name]
    if name not in _PLANS:
        known = ", ".join([*KNOWN, *PIPELINE_STRATEGIES])
        near = did_you_mean(name, [*KNOWN, *PIPELINE_STRATEGIES])
        raise SettingsError(f"strategy {name!r} is unknown; {near}choose of {known}")
    plan, vision, rollout = _PLANS[name]
    if name == "loader-only" and task == "sft":
        plan = "as-is"
    if plan == "adaptive" and sync == "step":
        plan = "whole-sample"
    loader: Loader = "controller" if name == "verl-bucketing" else usual
    if name in ("loader-only", "whole-sample", "all"):
        loader = "shadow"
    return SimulatedStrategy(name=name, plan=plan, loader=loader, balance_vision=vision, balance_rollout=rollout)
