"""Pipelines: what each layer costs and keeps, and the plans made from it. Pure data, equal on every rank."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import MetadataError
from trimtab.schema.plans import digest_of

LayerKind = Literal["embedding", "vision", "projector", "language", "head"]
Schedule = Literal["1f1b", "interleaved"]


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerSpread:
    """How the times of L layers vary over S recorded micro-batches.

    Attributes:
        forward_ns, backward_ns: int64 [S, L].
    """

    forward_ns: NDArray[np.int64]
    backward_ns: NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerProfile:
    """What each of L layers costs and keeps for one micro-batch, in the order they run.

    Attributes:
        names: of the layers, unique; as modules are called where the profile was measured.
        kinds: what each is. The embedding of patches and that of tokens are both "embedding".
        forward_ns, backward_ns: int64 [L]; the backward without recomputation.
        recompute_ns: int64 [L], what recomputing adds to the backward; 0 where a layer has nothing to recompute.
        activation_bytes: int64 [L], kept from forward to backward, the layer's input included, its output not.
        recomputed_bytes: int64 [L], the same if the layer recomputes: at least its input.
        workspace_bytes: int64 [L], what a layer holds beside that only while it runs.
        parameters: int64 [L].
        state_bytes: int64 [L], weights, gradients and optimizer state on the rank that holds the layer.
        boundary_bytes: int64 [L], sent to the next stage if it begins after this layer; as much comes back as gradient.
        boundary_ns: int64 [L], time of that transfer in one direction.
        spread: variation over micro-batches, where it is known.
    """

    names: tuple[str, ...]
    kinds: tuple[LayerKind, ...]
    forward_ns: NDArray[np.int64]
    backward_ns: NDArray[np.int64]
    recompute_ns: NDArray[np.int64]
    activation_bytes: NDArray[np.int64]
    recomputed_bytes: NDArray[np.int64]
    workspace_bytes: NDArray[np.int64]
    parameters: NDArray[np.int64]
    state_bytes: NDArray[np.int64]
    boundary_bytes: NDArray[np.int64]
    boundary_ns: NDArray[np.int64]
    spread: LayerSpread | None = None

    def __post_init__(self) -> None:
        """Refuse profiles that cannot be.

        Raises:
            MetadataError: names the layer, the column, the value and the limit.
        """
        if not self.names:
            raise MetadataError("the profile has no layers; give at least one")
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise MetadataError(f"the profile names layer {twice!r} twice; give each layer a name of its own")
        unknown = sorted(set(self.kinds) - set(get_args(LayerKind)))
        if unknown or len(self.kinds) != len(self.names):
            raise MetadataError(f"the profile needs a kind for each layer, of {', '.join(get_args(LayerKind))}")
        for column in _columns():
            self._check_column(column, least=1 if column == "forward_ns" else 0)
        self._check_recomputation()
        self._check_spread()

    def __len__(self) -> int:
        return len(self.names)

    def _check_column(self, column: str, least: int) -> None:
        values = getattr(self, column)
        if not isinstance(values, np.ndarray) or values.dtype != np.int64 or values.shape != (len(self),):
            raise MetadataError(f"the profile's {column} must be int64 of shape [{len(self)}], one a layer")
        if (values < least).any():
            layer = int((values < least).argmax())
            raise MetadataError(
                f"layer {self.names[layer]}: {column}={int(values[layer])} must be at least {least}; measure it again"
            )

    def _check_recomputation(self) -> None:
        more = self.recomputed_bytes > self.activation_bytes
        if more.any():
            layer = int(more.argmax())
            raise MetadataError(
                f"layer {self.names[layer]}: recomputed_bytes={int(self.recomputed_bytes[layer])} must be at most "
                f"activation_bytes={int(self.activation_bytes[layer])}; measure it again"
            )

    def _check_spread(self) -> None:
        if self.spread is None:
            return
        for column in ("forward_ns", "backward_ns"):
            values = getattr(self.spread, column)
            if values.dtype != np.int64 or values.ndim != 2 or values.shape[1] != len(self) or not len(values):
                raise MetadataError(f"the profile's spread.{column} must be int64 of shape [samples, {len(self)}]")
            if (values < 0).any():
                raise MetadataError(f"the profile's spread.{column} has negative times; measure it again")
        if self.spread.forward_ns.shape != self.spread.backward_ns.shape:
            raise MetadataError("the profile's spread must hold as many samples of the forward as of the backward")


def _columns() -> list[str]:
    return [field.name for field in fields(LayerProfile) if field.name not in ("names", "kinds", "spread")]


@dataclass(frozen=True, eq=False, kw_only=True)
class RecomputePlan:
    """Which layers recompute in the backward so that a memory budget holds.

    Attributes:
        names: of all L layers.
        recompute: bool [L], the layer keeps its input only; False: it need not recompute.
        budget_bytes: the limit.
        peak_bytes: predicted, state included.
        bytes_saved: less than if no layer recomputed.
        time_saved_ns: of a micro-batch, less than if every layer recomputed.
        exact: no choice of layers within the budget recomputes for less time.
    """

    names: tuple[str, ...]
    recompute: NDArray[np.bool_]
    budget_bytes: int
    peak_bytes: int
    bytes_saved: int
    time_saved_ns: int
    exact: bool

    @property
    def recomputing(self) -> tuple[str, ...]:
        """Names of the layers that recompute."""
        return tuple(name for name, chosen in zip(self.names, self.recompute, strict=True) if chosen)

    def digest(self) -> str:
        """Sixteen hex digits; ranks compare it before they apply the plan."""
        return digest_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What makes up a rank's predicted peak, bytes.

    Attributes:
        state: weights, gradients and optimizer state.
        activations: kept of all micro-batches in flight, outputs for the next stage included.
        transient: beside that while one layer runs: its workspace, and what it recomputes.
    """

    state: int
    activations: int
    transient: int

    @property
    def peak(self) -> int:
        """Their sum."""
        return self.state + self.activations + self.transient


@dataclass(frozen=True, eq=False, kw_only=True)
class StagePlan:
    """Which rank runs which layers, and which of them recompute (P ranks, C chunks a rank, K = P C stages).

    Stage k runs on rank ``k % P``. Under "1f1b" C is 1 and a stage is a rank.

    Attributes:
        method: what made it: "joint", or the name of a published method.
        schedule: order of forwards and backwards.
        ranks: P.
        chunks: C.
        micro_batches: of a step.
        bounds: [K + 1], stage k runs layers ``bounds[k]:bounds[k + 1]``.
        recompute: [K], for each stage the layers that recompute, by row of the profile.
        in_flight: [K], most micro-batches a stage holds activations of.
        forward_ns, backward_ns: [K], of one micro-batch; the backward with what is recomputed.
        send_ns: [K - 1], transfer from each stage to the next, one direction.
        step_ns: predicted, from the first forward to the last backward.
        lower_bound_ns: no plan for these ranks, chunks and memory takes less; equal to ``step_ns`` where proven best.
        memory: [P], predicted peak of each rank.
        memory_bytes: the cap on it.
    """

    method: str
    schedule: Schedule
    ranks: int
    chunks: int
    micro_batches: int
    bounds: tuple[int, ...]
    recompute: tuple[tuple[int, ...], ...]
    in_flight: tuple[int, ...]
    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    send_ns: tuple[int, ...]
    step_ns: int
    lower_bound_ns: int
    memory: tuple[RankMemory, ...]
    memory_bytes: int

    @property
    def rank_ns(self) -> tuple[int, ...]:
        """[P], computing of each rank for one micro-batch."""
        stages = [forward + backward for forward, backward in zip(self.forward_ns, self.backward_ns, strict=True)]
        return tuple(sum(stages[rank :: self.ranks]) for rank in range(self.ranks))

    @property
    def bottleneck(self) -> int:
        """The rank that computes longest."""
        return self.rank_ns.index(max(self.rank_ns))

    @property
    def bubble(self) -> float:
        """Share of the step that the mean rank does not compute."""
        return 1 - sum(self.rank_ns) * self.micro_batches / (self.ranks * self.step_ns)

    @property
    def fits(self) -> bool:
        """Every rank stays under the cap."""
        return max(memory.peak for memory in self.memory) <= self.memory_bytes

    def digest(self) -> str:
        """Sixteen hex digits over the whole plan; ranks compare it before they build stages."""
        return digest_of(self)
