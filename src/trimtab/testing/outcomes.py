"""Turn what became of each rank into results, or into the one exception that explains the run's failure."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NoReturn

from trimtab.errors import TrimtabError
from trimtab.testing.messages import Answer, Lost


class RankLostError(TrimtabError, RuntimeError):
    """A rank died or did not answer within the time limit.

    Attributes:
        ranks: the lost ranks.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


def results_or_errors(outcomes: Sequence[Answer | Lost]) -> list[Any]:
    """The result of each rank, or the exception in its place."""
    return [_result_or_error(rank, len(outcomes), outcome) for rank, outcome in enumerate(outcomes)]


def results_or_raise(outcomes: Sequence[Answer | Lost]) -> list[Any]:
    """The result of each rank.

    Raises:
        RankLostError: a rank died, or the run's time was up; names all such ranks.
        Exception: else the earliest exception of any rank. The other ranks' troubles are added as notes.
    """
    entries = results_or_errors(outcomes)
    lost = [rank for rank, outcome in enumerate(outcomes) if isinstance(outcome, Lost) and outcome.ended_run]
    failed = [rank for rank, outcome in enumerate(outcomes) if isinstance(outcome, Lost) or outcome.error is not None]
    if lost:
        _raise_lost(outcomes, entries, lost, failed)
    if failed:
        first = min(failed, key=lambda rank: _ended_s(outcomes[rank]))
        _raise_with_notes(entries[first], [entries[rank] for rank in failed if rank != first])
    return entries


def _result_or_error(rank: int, ranks: int, outcome: Answer | Lost) -> Any:
    if isinstance(outcome, Lost):
        lost = RankLostError(f"rank {rank} of {ranks} {outcome.reason}", (rank,))
        if outcome.stack:
            lost.add_note(f"rank {rank} stood at:\n{outcome.stack}")
        return lost
    if outcome.error is not None:
        error: Exception = pickle.loads(outcome.error)
        error.add_note(f"on rank {rank} of {ranks}:\n{outcome.traceback}")
        return error
    assert outcome.value is not None
    return pickle.loads(outcome.value)


def _raise_lost(outcomes: Sequence[Answer | Lost], entries: list[Any], lost: list[int], failed: list[int]) -> NoReturn:
    causes = [f"rank {rank} {outcomes[rank].reason}" for rank in lost]  # type: ignore[union-attr]
    error = RankLostError(f"of {len(outcomes)} ranks, " + ", ".join(causes), tuple(lost))
    _raise_with_notes(error, [entries[rank] for rank in failed])


def _raise_with_notes(error: Exception, others: list[Exception]) -> NoReturn:
    for other in others:
        for note in getattr(other, "__notes__", [str(other)]):
            error.add_note(note)
    raise error


def _ended_s(outcome: Answer | Lost) -> float:
    return outcome.at_s if isinstance(outcome, Answer) else float("inf")
