"""Ranks raise together, and before anything moves."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from trimtab.errors import LoaderError, MediaError, RankDisagreementError, TrimtabError
from trimtab.runtime.agreement import StepAgreement, agree_on_step, agree_on_value
from trimtab.testing import run_threads

DIGEST = "ffffffffffffffff"


def agree(group: dist.ProcessGroup, **changes: object) -> StepAgreement | str:
    arguments = {"digest": DIGEST, "loss_weight": 0.5 + group.rank(), "error": None, "bad_samples": []}
    try:
        return agree_on_step(group=group, step=7, **{**arguments, **changes})  # type: ignore[arg-type]
    except TrimtabError as error:
        return f"{type(error).__name__}: {error}"


def test_loss_weights_are_summed() -> None:
    outcomes = run_threads(3, agree)
    assert [outcome.loss_weight for outcome in outcomes if isinstance(outcome, StepAgreement)] == [4.5, 4.5, 4.5]


def test_a_failure_on_one_rank_is_raised_on_all() -> None:
    def fail_on_one(group: dist.ProcessGroup) -> object:
        return agree(group, error=MediaError("b.mp4: has no frames") if group.rank() == 1 else None)

    assert run_threads(3, fail_on_one) == ["LoaderError: step 7, rank 1: b.mp4: has no frames"] * 3


def test_different_plans_name_both_ranks() -> None:
    def differ(group: dist.ProcessGroup) -> object:
        return agree(group, digest="0123456789abcdef" if group.rank() == 2 else DIGEST)

    for outcome in run_threads(3, differ):
        assert isinstance(outcome, str)
        assert outcome.startswith(f"RankDisagreementError: step 7: rank 0 planned {DIGEST} but rank 2 planned 0123")


def test_bad_samples_reach_every_rank() -> None:
    def one_bad(group: dist.ProcessGroup) -> object:
        outcome = agree(group, bad_samples=[(4, "clip", "truncated")] if group.rank() == 1 else [])
        return outcome.bad_samples if isinstance(outcome, StepAgreement) else outcome

    assert run_threads(2, one_bad) == [[[], [(4, "clip", "truncated")]]] * 2


def test_values_that_differ_name_the_remedy() -> None:
    def compare(group: dist.ProcessGroup) -> None:
        agree_on_value(group, "the dataset", f"digest-{min(group.rank(), 1)}", "give every rank the same files")

    with pytest.raises(RankDisagreementError, match="rank 0 has digest-0, rank 1 has digest-1; give every rank"):
        run_threads(3, compare)


def test_errors_of_the_loader_are_loader_errors() -> None:
    with pytest.raises(LoaderError, match="rank 0: late"):
        run_threads(
            1,
            lambda group: agree_on_step(
                group=group, step=0, digest=DIGEST, loss_weight=0, error=ValueError("late"), bad_samples=[]
            ),
        )
