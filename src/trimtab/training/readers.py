"""The samples a run trains on, and those it is scored on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trimtab.errors import MetadataError
from trimtab.families.checkpoint import Checkpoint
from trimtab.loader.conversation import TrainOn
from trimtab.loader.sample_reader import SampleReader, open_reader
from trimtab.runtime.vlm import BalancedVLM
from trimtab.training.settings import SFTSettings


def open_readers(
    settings: SFTSettings, checkpoint: Checkpoint, model: BalancedVLM, *, train_on: TrainOn
) -> tuple[SampleReader, SampleReader | None]:
    """The training samples, and the held-out ones where the settings name some: what is wrong with either shows now.

    Args:
        settings: of the run.
        checkpoint: of the model.
        model: asked for rotary positions.
        train_on: which assistant turns enter the loss.

    Raises:
        TrimtabError: a table or dataset cannot be used, or they do not belong together.
    """

    def opened(table: Path, data: Sequence[str | Path], root: str | Path | None) -> SampleReader:
        return open_reader(
            table,
            data,
            root,
            allowed_roots=settings.loader.allowed_roots,
            model_folder=settings.model,
            checkpoint=checkpoint,
            model=model.base,
            train_on=train_on,
        )

    training = opened(settings.table, settings.data, settings.root)
    evaluation = settings.evaluation
    if not evaluation.data or evaluation.table is None:
        return training, None
    held_out = opened(evaluation.table, evaluation.data, evaluation.root)
    if not len(held_out.table):
        raise MetadataError(f"{evaluation.table}: holds no sample to score; leave evaluation.* out, or scan some")
    return training, held_out
