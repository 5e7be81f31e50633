"""The samples a run trains on, and those it is scored on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trimtab.cost.from_config import architecture_from_config
from trimtab.errors import MetadataError
from trimtab.families.checkpoint import Checkpoint
from trimtab.loader.conversation import TrainOn
from trimtab.loader.sample_reader import SampleReader, open_reader
from trimtab.runtime.vlm import BalancedVLM
from trimtab.schema.table import MetadataTable
from trimtab.training.lengths import check_lengths
from trimtab.training.settings import SFTSettings


def open_readers(
    settings: SFTSettings, checkpoint: Checkpoint, model: BalancedVLM, *, ranks: int, train_on: TrainOn
) -> tuple[SampleReader, SampleReader | None]:
    """The training samples, and the held-out ones where the settings name some: what is wrong with either shows now.

    Args:
        settings: of the run.
        checkpoint: of the model.
        model: asked for rotary positions.
        ranks: of the run, which may share samples.
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

    evaluation = settings.evaluation
    training = opened(settings.table, settings.data, settings.root)
    held_out = None
    if evaluation.data and evaluation.table is not None:
        held_out = opened(evaluation.table, evaluation.data, evaluation.root)
        _check_held_out(held_out.table, evaluation.table)
    language = architecture_from_config(checkpoint.config).language
    check_lengths(settings, language, ranks, training.table, held_out.table if held_out else None)
    return training, held_out


def _check_held_out(table: MetadataTable, path: Path) -> None:
    if not len(table):
        raise MetadataError(f"{path}: holds no sample to score; leave evaluation.* out, or scan some")
    if not table.loss_tokens.any():
        raise MetadataError(
            f"{path}: no held-out sample has an answer to score; the conversations need assistant turns, "
            "else leave evaluation.* out"
        )
