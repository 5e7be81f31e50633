"""Settings of the planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from trimtab.errors import SettingsError
from trimtab.schema.plans import Sync
from trimtab.schema.setting_checks import check_least

Objective = Literal["time", "attention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """How a step is planned.

    Attributes:
        strategy: name of the partition: "whole-sample" and "adaptive" (ours, without and with sharding), "uniform-N"
            (every sample over N ranks), "as-is" or a published one of ``planning/peers``.
        sync: where ranks meet: "step" (DDP, ZeRO-1/2), "micro_batch" (pipelines) or "layer" (FSDP2, ZeRO-3).
        max_tokens_per_micro_batch: hard cap on a rank's language-model tokens in one micro-batch; the number of
            micro-batches is the smallest that fits. None: one micro-batch.
        max_tokens_per_rank: hard cap on a rank's tokens in the whole step, or None.
        equal_counts: every rank gets the same number of samples in each micro-batch, give or take one.
        equal_microbatches: ranks run the same number of micro-batches, empty ones included. False (sync "step"
            only): a rank fills as few as it needs and stops.
        within_step: samples stay in the PPO mini-batch they came in; see ``planning/ppo_mini_batches.py``.
        balance_vision: spread vision units over ranks; otherwise a visual is encoded where its sample is.
        max_degree: largest sequence-parallel degree of "adaptive" (the paper's p_max).
        ranks_per_node: consecutive ranks that share fast links; groups of ranks stay within them where degrees allow.
        objective: what "adaptive" makes least: predicted step "time", or the "attention" ratio as the paper does.
        locality_tolerance: of plans slower than the best by at most this share, the one that moves least is taken.
            Used only where samples are on ranks already.
        check_order: play every rank's collectives through before a plan is handed out (``planning/collectives.py``); a
            guard against faults of the planner, for debugging.
    """

    strategy: str = "whole-sample"
    sync: Sync = "layer"
    max_tokens_per_micro_batch: int | None = None
    max_tokens_per_rank: int | None = None
    equal_counts: bool = False
    equal_microbatches: bool = True
    within_step: bool = True
    balance_vision: bool = True
    max_degree: int = 1
    ranks_per_node: int = 8
    objective: Objective = "time"
    locality_tolerance: float = 0.01
    check_order: bool = False

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            SettingsError: a value is out of range, or two settings contradict each other.
        """
        if self.sync not in get_args(Sync):
            raise SettingsError(f"sync={self.sync!r} is unknown; choose one of {', '.join(get_args(Sync))}")
        for name in ("max_tokens_per_micro_batch", "max_tokens_per_rank"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"{name}={value} must be at least 1, or None for no cap")
        for name in ("max_degree", "ranks_per_node"):
            check_least(name, getattr(self, name), 1)
        if self.objective not in get_args(Objective):
            known = ", ".join(get_args(Objective))
            raise SettingsError(f"objective={self.objective!r} is unknown; choose one of {known}")
        if not 0 <= self.locality_tolerance < 1:
            raise SettingsError(f"locality_tolerance={self.locality_tolerance} must lie in [0, 1)")
        if not self.equal_microbatches and self.sync != "step":
            raise SettingsError(
                f"equal_microbatches=False needs sync='step': with sync={self.sync!r} ranks meet in every micro-batch"
            )
