"""Whether caps can be met, and errors that say which sample breaks which cap."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.errors import InfeasibleError
from trimtab.planning.problem import PartitionProblem


def check_fits(problem: PartitionProblem, sample_ids: Sequence[str]) -> None:
    """Every sample alone must fit every cap.

    Raises:
        InfeasibleError: names the largest sample, its tokens, the cap and the smallest degree that would do.
    """
    if len(problem) == 0:
        return
    row = int(problem.tokens.argmax())
    tokens = int(problem.tokens[row])
    for name in ("max_tokens_per_micro_batch", "max_tokens_per_rank"):
        cap = getattr(problem, name)
        if cap is not None and tokens > cap:
            raise InfeasibleError(
                f"sample {sample_ids[row]}: {tokens} tokens exceed {name}={cap}; raise the cap, leave the sample out, "
                f"or shard it: a sequence-parallel degree of {smallest_degree(tokens, cap)} is the smallest that fits"
            )


def smallest_degree(tokens: int, cap: int) -> int:
    """Smallest power of two whose ranks together hold ``tokens`` with ``cap`` each."""
    return 1 << (-(-tokens // cap) - 1).bit_length()


def no_arrangement(problem: PartitionProblem, strategy: str) -> InfeasibleError:
    """The error for caps that every sample meets alone but no arrangement found meets together."""
    total = int(problem.tokens.sum())
    cap = problem.max_tokens_per_rank
    return InfeasibleError(
        f"strategy {strategy!r} found no arrangement of {len(problem)} samples ({total} tokens) on {problem.ranks} "
        f"ranks within max_tokens_per_rank={cap} and max_tokens_per_micro_batch={problem.max_tokens_per_micro_batch}; "
        f"the mean is {-(-total // problem.ranks)} tokens a rank: raise the cap or take fewer samples a step"
    )
