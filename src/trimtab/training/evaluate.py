"""Held-out accuracy: the share of samples whose every answer token is the likeliest one.

Given the earlier answer tokens the likeliest next token is what greedy decoding would emit, so a sample counts exactly
when greedy decoding would reproduce its answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from trimtab.errors import LoaderError
from trimtab.loader.step_loader import LoadedStep, StepLoader
from trimtab.runtime.groups import Ranks
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.runtime.vlm import BalancedVLM
from trimtab.schema.number_of import number_of


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Held-out results.

    Attributes:
        samples: samples with an answer.
        with_pixels, blanked: share answered right, with their pixels and with all pixels at the mean colour; None where
            nothing could be scored.
        right: for each sample id, whether it was answered right with pixels.
        not_loaded: why, for each sample id that could not be loaded and was not scored.
    """

    samples: int
    with_pixels: float | None
    blanked: float | None
    right: dict[str, bool]
    not_loaded: dict[str, str]

    def told(self) -> list[str]:
        """What a user is told, in lines."""
        lines = ["held-out accuracy: nothing could be scored"]
        if self.with_pixels is not None and self.blanked is not None:
            lines = [
                f"held-out accuracy over {number_of(self.samples, 'sample')}: {self.with_pixels:.1%}, "
                f"with blanked pixels {self.blanked:.1%}"
            ]
        if self.not_loaded:
            lines.append(f"not scored, as it could not be loaded: {number_of(len(self.not_loaded), 'held-out sample')}")
        return [*lines, *(f"  {name}: {reason}" for name, reason in self.not_loaded.items())]


@contextmanager
def telling_of_the_model(folder: Path) -> Iterator[None]:
    """Held-out samples that cannot be loaded end a run that has done all else: say so.

    Args:
        folder: that holds the trained model.

    Raises:
        LoaderError: what was raised within, with what is there already and how to go on.
    """
    try:
        yield
    except LoaderError as error:
        raise LoaderError(
            f"held-out samples: {error}; the model is written to {folder}; --resume scores the held-out samples again, "
            "--resume loader.on_bad_sample=skip those that can be loaded"
        ) from error


def evaluate(model: BalancedVLM, loader: StepLoader, steps: int, ranks: Ranks) -> Accuracy:
    """Score ``steps`` steps of held-out samples; a collective of all ranks."""
    model.eval()
    right: dict[str, bool] = {}
    right_blanked: dict[str, bool] = {}
    not_loaded: dict[str, str] = {}
    with torch.no_grad():
        for _ in range(steps):
            loaded = loader.next()
            not_loaded |= {one.sample_id: one.reason for one in loaded.bad_samples}
            packs = [pack.to(ranks.device) for pack in loaded.packs]
            right |= _score(model, loaded, packs, ranks)
            right_blanked |= _score(model, loaded, [_blank(pack) for pack in packs], ranks)
    model.train()
    return Accuracy(
        samples=len(right),
        with_pixels=_share(right),
        blanked=_share(right_blanked),
        right=right,
        not_loaded=not_loaded,
    )


def _share(right: dict[str, bool]) -> float | None:
    return sum(right.values()) / len(right) if right else None


def _score(model: BalancedVLM, loaded: LoadedStep, packs: list[PackedBatch], ranks: Ranks) -> dict[str, bool]:
    size = len(loaded.planned.batch)
    wrong = torch.zeros(size, dtype=torch.int64)
    answered = torch.zeros(size, dtype=torch.int64)
    for pack in packs:
        correct = model(pack).correct.cpu()
        rows = pack.loss_rows.cpu()
        wrong.index_add_(0, rows, (~correct).long())
        answered.index_add_(0, rows, torch.ones_like(rows))
    counts = torch.stack([wrong, answered])
    dist.all_reduce(counts, group=ranks.control)
    ids, blank = loaded.planned.batch.sample_ids, {one.sample_id for one in loaded.bad_samples}
    scored = [row for row in range(size) if counts[1, row] > 0 and ids[row] not in blank]
    return {ids[row]: bool(counts[0, row] == 0) for row in scored}


def _blank(pack: PackedBatch) -> PackedBatch:
    return replace(pack, pixel_values=torch.zeros_like(pack.pixel_values))
