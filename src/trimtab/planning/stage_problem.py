"""What a pipeline is planned for, and what a given partition of it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InfeasibleError, SettingsError
from trimtab.planning.pipeline_schedule import MAX_MICRO_BATCHES, MAX_PASSES, in_flight, rounds, step_ns
from trimtab.planning.recompute import Choice, can_recompute, choose, made_choice
from trimtab.schema.setting_checks import check_least
from trimtab.schema.stages import LayerProfile, RankMemory, Schedule, StagePlan

MAX_RUNS = 20_000_000  # stages times pairs of layers: the entries of a table of costs
MAX_SUM = 2.0**60


@dataclass(frozen=True, eq=False, kw_only=True)
class StageProblem:
    """Cut L layers into K = P C stages.

    Attributes:
        profile: what each layer costs and keeps, at the largest micro-batch.
        ranks: P.
        micro_batches: of a step.
        memory_bytes: cap of every rank.
        schedule: "1f1b", or "interleaved" with C chunks a rank.
        chunks: C.
    """

    profile: LayerProfile
    ranks: int
    micro_batches: int
    memory_bytes: int
    schedule: Schedule = "1f1b"
    chunks: int = 1

    def __post_init__(self) -> None:
        """Refuse what no plan can meet.

        Raises:
            SettingsError: a number is out of range, or numbers contradict each other.
            InfeasibleError: there are more stages than layers.
        """
        for name in ("ranks", "micro_batches", "memory_bytes", "chunks"):
            check_least(name, getattr(self, name), 1)
        if self.micro_batches > MAX_MICRO_BATCHES:
            raise SettingsError(f"micro_batches={self.micro_batches} must be at most {MAX_MICRO_BATCHES}")
        if self.schedule == "1f1b" and self.chunks > 1:
            raise SettingsError(f"chunks={self.chunks} needs schedule 'interleaved'; '1f1b' has one a rank")
        if self.schedule == "interleaved":
            self._check_interleaved()
        if self.stages > len(self.profile):
            chunks = f" of {self.chunks} chunks" if self.chunks > 1 else ""
            raise InfeasibleError(
                f"{self.ranks} stages{chunks} need at least {self.stages} layers, the model has {len(self.profile)}; "
                f"use at most {self._smaller()}"
            )

        self._check_size()

    def _smaller(self) -> str:
        """The change that goes the least way: fewer chunks where one layer is left for each rank's two, else ranks."""
        layers = len(self.profile)
        if self.chunks > 1 and layers >= 2 * self.ranks:
            return f"{layers // self.ranks} chunks"
        return f"{max(1, layers // self.chunks)} stages"

    def _check_size(self) -> None:
        """Refuse what would take too long, too much memory or more than 64 bits to plan."""
        most = MAX_PASSES // self.stages
        if self.micro_batches > most:
            raise SettingsError(
                f"{self.micro_batches} micro-batches on {self.stages} stages are too many to play through; use at most "
                f"{most}"
            )
        layers = len(self.profile)
        if self.stages * layers**2 > MAX_RUNS:
            raise SettingsError(
                f"{layers} layers in {self.stages} stages are too many to plan; use at most "
                f"{int((MAX_RUNS / self.stages) ** 0.5)} layers, several of the model's as one"
            )
        profile = self.profile
        times = (profile.forward_ns, profile.backward_ns, profile.recompute_ns, profile.boundary_ns)
        sizes = (profile.activation_bytes, profile.workspace_bytes, profile.state_bytes, profile.boundary_bytes)
        for name, columns in (("times", times), ("sizes", sizes)):
            if sum(float(column.sum(dtype=np.float64)) for column in columns) * 2 * self.micro_batches > MAX_SUM:
                raise SettingsError(
                    f"the profile's {name} add up to more than 64 bits hold; check units, or plan smaller micro-batches"
                )

    def _check_interleaved(self) -> None:
        if self.chunks < 2:
            raise SettingsError("schedule 'interleaved' needs at least 2 chunks a rank; use '1f1b' for one")
        count = rounds(self.ranks, self.micro_batches)
        if self.micro_batches % count:
            near = self.micro_batches // self.ranks * self.ranks
            raise SettingsError(
                f"schedule 'interleaved' needs micro-batches that split evenly into its {count} rounds, "
                f"found {self.micro_batches}; use {near}"
            )

    @property
    def stages(self) -> int:
        """K."""
        return self.ranks * self.chunks

    @property
    def in_flight(self) -> tuple[int, ...]:
        """[K], most micro-batches each stage holds activations of."""
        return in_flight(self.schedule, self.ranks, self.chunks, self.micro_batches)

    def stages_of(self, rank: int) -> range:
        """The stages a rank runs."""
        return range(rank, self.stages, self.ranks)

    def send_ns(self, bounds: Sequence[int]) -> list[int]:
        """[K - 1], transfer after each stage but the last; nothing where all run on one rank."""
        if self.ranks == 1:
            return [0] * (self.stages - 1)
        return [int(self.profile.boundary_ns[stop - 1]) for stop in bounds[1:-1]]

    def rank_layers(self, bounds: Sequence[int], rank: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The layers of a rank, int64 [N], and how many micro-batches each holds activations of, int64 [N]."""
        spans = [np.arange(bounds[stage], bounds[stage + 1], dtype=np.int64) for stage in self.stages_of(rank)]
        depths = [self.in_flight[stage] for stage in self.stages_of(rank)]
        return np.concatenate(spans), np.repeat(depths, [len(span) for span in spans]).astype(np.int64)

    def held_bytes(self, bounds: Sequence[int], rank: int) -> tuple[int, int]:
        """Of a rank: its state, and its stages' outputs that wait for their backward."""
        rows, _ = self.rank_layers(bounds, rank)
        outputs = sum(
            self.in_flight[stage] * int(self.profile.boundary_bytes[bounds[stage + 1] - 1])
            for stage in self.stages_of(rank)
            if stage < self.stages - 1
        )
        return int(self.profile.state_bytes[rows].sum()), outputs

    def best_choice(self, bounds: Sequence[int], rank: int) -> Choice | None:
        """The layers of a rank that recompute for least time under the cap, or None where nothing fits."""
        rows, copies = self.rank_layers(bounds, rank)
        return choose(self.profile, rows, copies, self.memory_bytes - sum(self.held_bytes(bounds, rank)))

    def given_choice(self, bounds: Sequence[int], rank: int, recompute: NDArray[np.bool_]) -> Choice:
        """What it takes a rank to recompute those of ``recompute``, bool [L]; layers with nothing to gain never do."""
        rows, copies = self.rank_layers(bounds, rank)
        return made_choice(self.profile, rows, copies, (recompute & can_recompute(self.profile))[rows])


def stage_plan(
    problem: StageProblem,
    bounds: Sequence[int],
    choices: Sequence[Choice],
    method: str,
    lower_bound_ns: int = 0,
) -> StagePlan:
    """The plan of a partition and each rank's choice of layers that recompute.

    Args:
        problem: what it is for.
        bounds: [K + 1].
        choices: [P].
        method: name of what made it.
        lower_bound_ns: of the problem, 0 where none is known.
    """
    recompute = np.zeros(len(problem.profile), dtype=np.bool_)
    for rank, choice in enumerate(choices):
        recompute[problem.rank_layers(bounds, rank)[0]] = choice.recompute
    spans = list(pairwise(bounds))
    forward = [int(problem.profile.forward_ns[start:stop].sum()) for start, stop in spans]
    repeated = np.where(recompute, problem.profile.recompute_ns, 0) + problem.profile.backward_ns
    backward = [int(repeated[start:stop].sum()) for start, stop in spans]
    send = problem.send_ns(bounds)
    timed = (np.array([values], dtype=np.int64) for values in (forward, backward, send))
    memory = []
    for rank, choice in enumerate(choices):
        state, outputs = problem.held_bytes(bounds, rank)
        memory.append(
            RankMemory(state=state, activations=choice.activation_bytes + outputs, transient=choice.transient_bytes)
        )
    return StagePlan(
        method=method,
        schedule=problem.schedule,
        ranks=problem.ranks,
        chunks=problem.chunks,
        micro_batches=problem.micro_batches,
        bounds=tuple(int(bound) for bound in bounds),
        recompute=tuple(tuple((start + np.flatnonzero(recompute[start:stop])).tolist()) for start, stop in spans),
        in_flight=problem.in_flight,
        forward_ns=tuple(forward),
        backward_ns=tuple(backward),
        send_ns=tuple(send),
        step_ns=int(step_ns(problem.schedule, problem.ranks, problem.micro_batches, *timed)[0]),
        lower_bound_ns=lower_bound_ns,
        memory=tuple(memory),
        memory_bytes=problem.memory_bytes,
    )


def plan_of_bounds(problem: StageProblem, bounds: Sequence[int], method: str) -> StagePlan | None:
    """The plan of a partition under which each rank recomputes for least time; None where some rank cannot fit."""
    choices = []
    for rank in range(problem.ranks):
        choice = problem.best_choice(bounds, rank)
        if choice is None:
            return None
        choices.append(choice)
    return stage_plan(problem, bounds, choices, method)


def plan_recomputing(
    problem: StageProblem, bounds: Sequence[int], recompute: NDArray[np.bool_], method: str
) -> StagePlan:
    """The plan of a partition in which the layers of ``recompute``, bool [L], recompute; it may not fit."""
    choices = [problem.given_choice(bounds, rank, recompute) for rank in range(problem.ranks)]
    return stage_plan(problem, bounds, choices, method)
