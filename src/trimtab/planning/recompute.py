"""Which layers recompute in the backward, under a memory budget: the choice that recomputes for least time.

A knapsack: a layer that need not recompute takes bytes and saves time. Solved exactly by lists of undominated choices
(Nemhauser and Ullmann, 1969): layers of a model come in few sizes, so that lists stay short. Where one would exceed
``MAX_CHOICES`` it is thinned evenly, which never breaks the budget, and the result says that it is not exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InfeasibleError, InvalidPlanError
from trimtab.schema.setting_checks import check_least
from trimtab.schema.stages import LayerProfile, RecomputePlan

MAX_CHOICES = 2048
MAX_LEVELS = 16


@dataclass(frozen=True, eq=False, slots=True)
class Frontier:
    """Undominated sets of layers that keep their activations.

    Attributes:
        extra_bytes: int64 [C], ascending, more than if all recomputed.
        saved_ns: int64 [C], ascending, time saved against recomputing all.
        exact: no set was left out that none here dominates.
    """

    extra_bytes: NDArray[np.int64]
    saved_ns: NDArray[np.int64]
    exact: bool = True

    @staticmethod
    def empty() -> Frontier:
        """Of no layers."""
        return Frontier(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))

    def add(self, extra_bytes: int, saved_ns: int, *, must_keep: bool, limit: int, alike: int = 1) -> Frontier:
        """With more layers, which may keep their activations or must; sets above ``limit`` bytes are left out.

        Args:
            extra_bytes: of one of them.
            saved_ns: of one of them.
            must_keep: all of them must.
            limit: bytes.
            alike: how many.
        """
        if must_keep or not extra_bytes:
            with_bytes, with_saved = self.extra_bytes + alike * extra_bytes, self.saved_ns + alike * saved_ns
        elif not saved_ns:
            return self
        else:
            kept = np.arange(alike + 1, dtype=np.int64)[:, None]
            with_bytes = (self.extra_bytes + kept * extra_bytes).ravel()
            with_saved = (self.saved_ns + kept * saved_ns).ravel()
            order = np.lexsort((-with_saved, with_bytes))
            with_bytes, with_saved = with_bytes[order], with_saved[order]
            better = np.ones(len(order), dtype=np.bool_)
            better[1:] = with_saved[1:] > np.maximum.accumulate(with_saved)[:-1]
            with_bytes, with_saved = with_bytes[better], with_saved[better]
        held = int(np.searchsorted(with_bytes, limit, side="right"))
        return Frontier(with_bytes[:held], with_saved[:held], self.exact)._thinned()

    def _thinned(self) -> Frontier:
        if len(self.extra_bytes) <= MAX_CHOICES:
            return self
        kept = np.linspace(0, len(self.extra_bytes) - 1, MAX_CHOICES).round().astype(np.int64)
        return Frontier(self.extra_bytes[kept], self.saved_ns[kept], exact=False)

    def most_saved(self, capacity: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each capacity the most time saved, or -1 where nothing fits."""
        at = np.searchsorted(self.extra_bytes, capacity, side="right") - 1
        if not len(self.extra_bytes):
            return np.full(len(capacity), -1, dtype=np.int64)
        return np.where(at >= 0, self.saved_ns[at], -1)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Choice:
    """Which of the given layers recompute.

    Attributes:
        recompute: bool, one for each of them.
        recompute_ns: what it costs.
        activation_bytes: kept of all micro-batches in flight.
        transient_bytes: of one layer while it runs, at most.
        exact: none costs less.
    """

    recompute: NDArray[np.bool_]
    recompute_ns: int
    activation_bytes: int
    transient_bytes: int
    exact: bool


def transient_levels(profile: LayerProfile, rows: Sequence[int] | NDArray[np.int64]) -> tuple[NDArray[np.int64], bool]:
    """Limits worth setting on what one recomputing layer holds beside what is kept, and whether these are all.

    A layer above the limit must not recompute: with few micro-batches in flight, keeping the largest layer can take
    less memory than having room to recompute it.
    """
    rows = np.asarray(rows, dtype=np.int64)
    extra = profile.activation_bytes[rows] - profile.recomputed_bytes[rows]
    held = profile.workspace_bytes[rows] + extra
    levels = np.unique(np.append(held[extra > 0], np.maximum.accumulate(profile.workspace_bytes[rows])))
    if len(levels) <= MAX_LEVELS:
        return levels, True
    return levels[np.linspace(len(levels) - 1, 0, MAX_LEVELS).round().astype(np.int64)], False


def choose(profile: LayerProfile, rows: NDArray[np.int64], copies: NDArray[np.int64], budget: int) -> Choice | None:
    """The layers that recompute for least time within ``budget`` bytes of activations and transient memory.

    Args:
        profile: of the model.
        rows: int64 [N], the layers of one rank.
        copies: int64 [N], micro-batches whose activations each of them holds.
        budget: bytes.

    Returns:
        None where not even recomputing all of them fits.
    """
    levels, exact = transient_levels(profile, rows)
    extra = profile.activation_bytes[rows] - profile.recomputed_bytes[rows]
    held, room = profile.workspace_bytes[rows] + extra, budget - int((copies * profile.recomputed_bytes[rows]).sum())
    weights, saved = copies * extra, np.where(extra > 0, profile.recompute_ns[rows], 0)
    most = -1
    kept: NDArray[np.bool_] | None = None
    for level in sorted(levels[levels >= profile.workspace_bytes[rows].max()].tolist(), reverse=True):
        must_keep = (held > level) | (extra == 0)
        if most_saved(weights, saved, must_keep, room - level) > most:
            found, gain, all_seen = _knapsack(weights, saved, must_keep, room - level)
            exact &= all_seen
            if gain > most:
                most, kept = gain, found
    return None if kept is None else made_choice(profile, rows, copies, ~kept, exact=exact)


def most_saved(
    weights: NDArray[np.int64], saved: NDArray[np.int64], must_keep: NDArray[np.bool_], capacity: int
) -> float:
    """No set of layers saves more within ``capacity``: the knapsack with parts of layers (Dantzig, 1957)."""
    left = capacity - int(weights[must_keep].sum())
    if left < 0:
        return -1.0
    free = ~must_keep
    weight, gain = weights[free].astype(np.float64), saved[free].astype(np.float64)
    order = np.argsort(-gain / weight, kind="stable")
    parts = np.clip((left - np.cumsum(weight[order]) + weight[order]) / weight[order], 0.0, 1.0)
    return float(saved[must_keep].sum() + np.ceil((parts * gain[order]).sum() * (1 + 1e-12)))


def _knapsack(
    weights: NDArray[np.int64], saved: NDArray[np.int64], must_keep: NDArray[np.bool_], capacity: int
) -> tuple[NDArray[np.bool_], int, bool]:
    """The layers that keep their activations, what that saves (-1: nothing fits), and whether that is proven most."""
    kinds, kind_of = np.unique(np.stack([weights, saved, must_keep], axis=1), axis=0, return_inverse=True)
    counts = np.bincount(kind_of.ravel(), minlength=len(kinds))
    steps = [Frontier.empty()]
    for (weight, gain, must), alike in zip(kinds.tolist(), counts.tolist(), strict=True):
        steps.append(steps[-1].add(weight, gain, must_keep=bool(must), limit=capacity, alike=alike))
    kept = np.zeros(len(weights), dtype=np.bool_)
    if not len(steps[-1].extra_bytes):
        return kept, -1, True
    most = held, gain = int(steps[-1].extra_bytes[-1]), int(steps[-1].saved_ns[-1])
    for kind in reversed(range(len(kinds))):
        weight, worth, must = kinds[kind].tolist()
        alike = int(counts[kind])
        number = alike if must else _number_kept(steps[kind], held, gain, weight, worth, alike)
        kept[np.flatnonzero(kind_of.ravel() == kind)[alike - number :]] = True
        held, gain = held - number * weight, gain - number * worth
    return kept, most[1], steps[-1].exact


def _number_kept(before: Frontier, held: int, gain: int, weight: int, worth: int, alike: int) -> int:
    """How many of ``alike`` layers lead from a set of the step before to the set of ``held`` and ``gain``."""
    for number in range(alike + 1):
        if ((before.extra_bytes == held - number * weight) & (before.saved_ns == gain - number * worth)).any():
            return number
    raise InvalidPlanError(f"no set of layers holds {held} bytes and saves {gain} ns; this is a defect of trimtab")


def made_choice(
    profile: LayerProfile,
    rows: NDArray[np.int64],
    copies: NDArray[np.int64],
    recompute: NDArray[np.bool_],
    *,
    exact: bool = False,
) -> Choice:
    """What it costs to recompute the given layers."""
    kept = np.where(recompute, profile.recomputed_bytes[rows], profile.activation_bytes[rows])
    return Choice(
        recompute=recompute,
        recompute_ns=int(profile.recompute_ns[rows][recompute].sum()),
        activation_bytes=int((copies * kept).sum()),
        transient_bytes=int((profile.workspace_bytes[rows] + profile.activation_bytes[rows] - kept).max()),
        exact=exact,
    )


def can_recompute(profile: LayerProfile) -> NDArray[np.bool_]:
    """The layers that keep less when they recompute, bool [L]."""
    return profile.activation_bytes > profile.recomputed_bytes


def plan_recompute(
    profile: LayerProfile, memory_bytes: int, *, state_bytes: int | None = None, in_flight: int = 1
) -> RecomputePlan:
    """Choose layers for one device that runs all of them, as under FSDP2 or plain data parallelism.

    Args:
        profile: its layers, at the largest micro-batch.
        memory_bytes: budget of one device.
        state_bytes: what weights, gradients, optimizer and gathered layers take of it; default: the profile's state.
        in_flight: micro-batches whose activations are held at a time.

    Raises:
        SettingsError: a number is below its least value.
        InfeasibleError: not even recomputing every layer fits; tells the smallest budget that does.
    """
    state = int(profile.state_bytes.sum()) if state_bytes is None else state_bytes
    check_least("memory_bytes", memory_bytes, 1)
    check_least("in_flight", in_flight, 1)
    check_least("state_bytes", state, 0)
    rows = np.arange(len(profile), dtype=np.int64)
    copies = np.full(len(profile), in_flight, dtype=np.int64)
    full = made_choice(profile, rows, copies, can_recompute(profile))
    none = made_choice(profile, rows, copies, np.zeros(len(profile), dtype=np.bool_))
    found = choose(profile, rows, copies, memory_bytes - state)
    if found is None:
        needed = state + full.activation_bytes + full.transient_bytes
        raise InfeasibleError(
            f"recomputing every layer takes {needed} bytes, {state} of them state, but the budget is {memory_bytes}; "
            f"raise it to {needed}, make micro-batches smaller, or shard the state further"
        )
    used = found.activation_bytes + found.transient_bytes
    return RecomputePlan(
        names=profile.names,
        recompute=found.recompute,
        budget_bytes=memory_bytes,
        peak_bytes=state + used,
        bytes_saved=none.activation_bytes + none.transient_bytes - used,
        time_saved_ns=full.recompute_ns - found.recompute_ns,
        exact=found.exact,
    )
