"""Whether every sample fits the caps, and the error that says which one does not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InfeasibleError
from trimtab.planning.problem import PartitionProblem


def check_fits(
    problem: PartitionProblem, sample_ids: Sequence[str], legal_degrees: tuple[int, ...] | None = None
) -> None:
    """Every sample alone must fit every cap, at the largest degree it may have.

    Args:
        problem: samples, caps and degrees.
        sample_ids: N names.
        legal_degrees: what the model's heads allow, or None where that is not known.

    Raises:
        InfeasibleError: names the largest sample, its tokens, the cap and the smallest legal degree that would do;
            where there are fewer ranks than that, says so.
    """
    if len(problem) == 0:
        return
    row = int(problem.tokens.argmax())
    tokens = int(problem.tokens[row])
    largest = 1 if problem.sharding is None else problem.sharding.family.degrees[-1]
    for name in ("max_tokens_per_micro_batch", "max_tokens_per_rank"):
        cap = getattr(problem, name)
        if cap is not None and exceeds(problem.tokens, largest, cap)[row]:
            at_degree = f" at the largest degree, {largest}," if largest > 1 else ""
            raise InfeasibleError(
                f"sample {sample_ids[row]}: {tokens} tokens{at_degree} exceed {name}={cap}; raise the cap, leave the "
                f"sample out, or {_shard_advice(tokens, cap, problem.ranks, legal_degrees)}",
                too_long=(sample_ids[row], tokens, largest),
            )


def feasible_degrees(problem: PartitionProblem, degrees: tuple[int, ...]) -> NDArray[np.bool_]:
    """Whether each sample [N] fits the caps alone at each degree [D]."""
    cap = token_cap(problem)
    held = -(-problem.tokens[:, None] // np.array(degrees, dtype=np.int64))
    return np.ones(held.shape, dtype=np.bool_) if cap is None else held <= cap


def exceeds(tokens: NDArray[np.int64], degree: int, cap: int) -> NDArray[np.bool_]:
    """Whether a rank's share of each sample [N] is above a cap where ``degree`` ranks share it."""
    return np.asarray(-(-tokens // degree) > cap)


def token_cap(problem: PartitionProblem) -> int | None:
    """Most tokens of a rank in one micro-batch, or None."""
    caps = [problem.max_tokens_per_micro_batch, problem.max_tokens_per_rank]
    return min((cap for cap in caps if cap is not None), default=None)


def smallest_degree(size: int, cap: int, legal_degrees: tuple[int, ...] | None) -> int | None:
    """Smallest degree at which each rank's share of ``size`` is at most ``cap``; None where no legal one does."""
    needed = -(-size // cap)
    if legal_degrees is None:
        return needed
    return min((degree for degree in legal_degrees if degree >= needed), default=None)


def _shard_advice(tokens: int, cap: int, ranks: int, legal_degrees: tuple[int, ...] | None) -> str:
    degree = smallest_degree(tokens, cap, legal_degrees)
    if degree is None:
        legal = ", ".join(str(each) for each in legal_degrees or ())
        return f"shorten it: the model's heads allow degrees {legal} only, none of which is enough"
    if degree > ranks:
        return (
            f"use more ranks: a sequence-parallel degree of {degree} is the smallest that fits, and needs {degree} "
            f"ranks; there are {ranks}"
        )
    return (
        f"shard it: a sequence-parallel degree of {degree} is the smallest that fits "
        f"(balance.max_degree={degree}; in code strategy adaptive and max_degree={degree})"
    )
