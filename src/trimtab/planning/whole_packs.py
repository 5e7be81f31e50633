"""Packs over ranks: the packer chose which samples run together, so a pack goes whole, and alone, into one micro-batch.

A packer's caps (patches, activation memory) need not be the planner's, so packs are neither cut nor joined here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InfeasibleError, SettingsError
from trimtab.planning.problem import Assignment, PartitionProblem
from trimtab.planning.split_ranks import split_ranks
from trimtab.planning.strategies import Strategy


def checked_packs(pack_of: Sequence[int] | NDArray[np.int64], samples: int, *, equal_counts: bool) -> NDArray[np.int64]:
    """The pack of each sample, int64 [N].

    Raises:
        SettingsError: not one pack for each sample, or equal numbers of samples are asked for as well.
    """
    packs = np.asarray(pack_of, dtype=np.int64)
    if packs.shape != (samples,) or packs.min(initial=0) < 0:
        raise SettingsError(f"pack_of must hold a pack from 0 for each of {samples} samples, found shape {packs.shape}")
    if equal_counts:
        raise SettingsError("equal_counts contradicts packs, which hold different numbers of samples; leave one out")
    return packs


def dealt(pack_of: NDArray[np.int64], ranks: int) -> Assignment:
    """The packs where they come: pack p in micro-batch ``p // ranks`` of rank ``p % ranks``."""
    micro_batch, rank = np.divmod(pack_of, ranks)
    return Assignment(rank=rank, micro_batch=micro_batch)


def spread(problem: PartitionProblem, pack_of: NDArray[np.int64], strategy: Strategy) -> Assignment:
    """Even the packs out: in as few micro-batches as they come in, at most one in each of a rank.

    Args:
        problem: of the samples.
        pack_of: int64 [N]; a number no sample has leaves a rank idle in a micro-batch.
        strategy: solves the problem of the packs, of which every rank gets equally many.

    Raises:
        InfeasibleError: a pack exceeds a cap on tokens.
        SettingsError: the strategy does not honour what the problem asks for.
    """
    packs = int(pack_of.max(initial=-1)) + 1
    items = replace(
        problem,
        cost_ns=sums(problem.cost_ns, pack_of),
        tokens=sums(problem.tokens, pack_of),
        micro_batches=max(1, -(-packs // problem.ranks)),
        equal_counts=True,
    )
    strategy.check(items)
    found = _solve(items, strategy)
    if found is None:
        raise InfeasibleError(
            f"{packs} packs of at most {items.tokens.max(initial=0)} tokens do not fit on {problem.ranks} ranks within "
            f"max_tokens_per_micro_batch={problem.max_tokens_per_micro_batch} and "
            f"max_tokens_per_rank={problem.max_tokens_per_rank}; pack by a smaller cap on tokens"
        )
    return Assignment(rank=found.rank[pack_of], micro_batch=found.micro_batch[pack_of])


def _solve(items: PartitionProblem, strategy: Strategy) -> Assignment | None:
    if not strategy.ranks_only:
        return strategy.solve(items)
    ranked = strategy.solve(replace(items, micro_batches=1, max_tokens_per_micro_batch=None))
    return None if ranked is None else split_ranks(items, ranked.rank)


def sums(load: NDArray[np.int64], pack_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [P], total of ``load`` (int64 [N]) in each pack."""
    total = np.zeros(int(pack_of.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(total, pack_of, load)
    return total
