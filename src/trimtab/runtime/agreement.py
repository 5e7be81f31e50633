"""Ranks tell one another, once a step, that all is well and that they hold the same plan.

One all-gather carries status, digest and loss weight; only when a rank reports trouble does a second exchange carry
the texts. So an error on one rank is raised on every rank, and no rank waits for a peer that has given up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from trimtab.errors import LoaderError, RankDisagreementError

_FINE, _FAILED = 0, 1

BadSample = tuple[int, str, str]
"""Row in the step's batch, sample id, reason."""


@dataclass(frozen=True, kw_only=True)
class StepAgreement:
    """What all ranks know once they have agreed on a step.

    Attributes:
        loss_weight: sum of loss weights over ranks, the global denominator.
        bad_samples: what each rank could not load, one list a rank.
    """

    loss_weight: float
    bad_samples: list[list[BadSample]]


def agree_on_step(
    *,
    group: dist.ProcessGroup,
    step: int,
    digest: str,
    loss_weight: float,
    error: BaseException | None,
    bad_samples: list[BadSample],
) -> StepAgreement:
    """Compare digests, sum loss weights and share failures; a collective of ``group`` (CPU tensors).

    Args:
        group: the ranks of the run.
        step: named in errors.
        digest: sixteen hex digits of this rank's plan.
        loss_weight: this rank's sum over the step's loss tokens.
        error: what went wrong on this rank, or None.
        bad_samples: samples this rank could not load.

    Raises:
        LoaderError: a rank failed; raised on every rank, naming rank and reason.
        RankDisagreementError: two ranks hold different plans; names both.
    """
    ranks = group.size()
    mine = torch.zeros(3, dtype=torch.int64)
    mine[0] = _FAILED if error else _FINE
    mine[1] = int(digest, 16) - (1 << 63)
    mine[2] = len(bad_samples)
    weight = torch.tensor([loss_weight], dtype=torch.float64).view(torch.int64)
    gathered = torch.empty(ranks * 4, dtype=torch.int64)
    dist.all_gather_single(gathered, torch.cat([mine, weight]), group=group)
    table = gathered.view(ranks, 4)
    if bool((table[:, 0] != _FINE).any()):
        raise_shared_error(group, step, error)
    digests = [f"{value + (1 << 63):016x}" for value in table[:, 1].tolist()]
    if len(set(digests)) > 1:
        other = next(rank for rank in range(ranks) if digests[rank] != digests[0])
        raise RankDisagreementError(
            f"step {step}: rank 0 planned {digests[0]} but rank {other} planned {digests[other]}; give every rank the "
            "same dataset files, metadata table and settings"
        )
    bad: list[list[BadSample]] = [[] for _ in range(ranks)]
    if bool((table[:, 2] > 0).any()):
        dist.all_gather_object(bad, bad_samples, group=group)
    weights = table[:, 3].contiguous().view(torch.float64)
    return StepAgreement(loss_weight=float(weights.sum()), bad_samples=bad)


def raise_shared_error(group: dist.ProcessGroup, step: int, error: BaseException | None) -> None:
    """Gather the ranks' errors and raise the first on all of them.

    Raises:
        LoaderError: always.
    """
    texts: list[str | None] = [None] * group.size()
    dist.all_gather_object(texts, None if error is None else f"{error}", group=group)
    failed = next((rank for rank, text in enumerate(texts) if text is not None), None)
    reason = "an unknown failure" if failed is None else texts[failed]
    raise LoaderError(f"step {step}, rank {failed}: {reason}") from error


def agree_on_value(group: dist.ProcessGroup, what: str, value: str, remedy: str) -> None:
    """Check that every rank holds the same text; a collective of ``group``.

    Raises:
        RankDisagreementError: two ranks differ; names both values.
    """
    values: list[str] = [""] * group.size()
    dist.all_gather_object(values, value, group=group)
    for rank, other in enumerate(values):
        if other != values[0]:
            raise RankDisagreementError(f"{what} differs: rank 0 has {values[0]}, rank {rank} has {other}; {remedy}")
