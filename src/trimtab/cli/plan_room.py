"""What devices hold beside the model's state, where that is the cap of a plan and a sample exceeds it."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.cost.architecture import Architecture
from trimtab.cost.cluster import Cluster
from trimtab.cost.memory import largest_micro_batch
from trimtab.planning.feasibility import smallest_degree
from trimtab.planning.strategies import Strategy

_MOST_RANKS = 4096


@dataclass(frozen=True)
class DeviceRoom:
    """Tokens that fit a device, with recomputation and in bf16.

    Attributes:
        architecture: the model, fully sharded.
        cluster: of the devices.
        ranks: that share its state.
    """

    architecture: Architecture
    cluster: Cluster
    ranks: int

    def exceeded(self, sample: str, tokens: int, degree: int, strategy: Strategy) -> str:
        """That a sample does not fit, and what would do.

        Args:
            sample: its name.
            tokens: of it.
            degree: the largest it may have.
            strategy: that plans.
        """
        at_degree = f" at the largest degree, {degree}," if degree > 1 else ""
        memory = f"{self.cluster.device_memory / 1e9:.0f} GB"
        remedies = ["leave the sample out", *self._shard(tokens), *self._more_ranks(tokens, degree, strategy)]
        held = f"{self._held(self.ranks)} that a device of {memory} holds"
        return (
            f"sample {sample}: {tokens} tokens{at_degree} exceed the {held} beside the model's state sharded over "
            f"{self.ranks} ranks; {', '.join(remedies)}, or use larger devices"
        )

    def _held(self, ranks: int) -> int:
        return largest_micro_batch(self.architecture, self.cluster.device_memory, ranks, recompute=True)

    def _shard(self, tokens: int) -> list[str]:
        legal = self.architecture.language.legal_degrees(self.ranks)
        degree = smallest_degree(tokens, self._held(self.ranks), legal)
        return [] if degree is None else [f"shard it (--strategy adaptive --max-degree {degree})"]

    def _more_ranks(self, tokens: int, degree: int, strategy: Strategy) -> list[str]:
        """The fewest with which a device holds enough, as each then keeps less of the state."""
        step = strategy.degree or 1
        most = min(_MOST_RANKS, self.cluster.ranks or _MOST_RANKS)
        enough = (
            n for n in range(self.ranks // step * step + step, most + 1, step) if self._held(n) * degree >= tokens
        )
        ranks = next(enough, None)
        return [] if ranks is None else [f"use {ranks} ranks, with which a device holds {self._held(ranks)}"]
