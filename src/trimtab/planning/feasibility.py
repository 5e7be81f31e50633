"""Whether every sample fits the caps, and the error that says which one does not."""

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
