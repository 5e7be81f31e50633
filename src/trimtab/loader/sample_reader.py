"""Reads one sample of a scanned dataset: its tokens, and the tasks that decode its visuals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from trimtab.errors import DatasetError, MetadataError
from trimtab.families.checkpoint import Checkpoint
from trimtab.families.family import Family
from trimtab.loader.collate import PackableSample
from trimtab.loader.conversation import TrainOn, encode
from trimtab.loader.executors.decode_task import DecodeTask
from trimtab.loader.media_reader import MediaReader
from trimtab.loader.scanned_dataset import open_scanned
from trimtab.loader.sources import Conversation, Dataset
from trimtab.loader.tokenizer import load_tokenizer
from trimtab.media.geometry import seconds_per_patch
from trimtab.media.visual import frame_rate
from trimtab.runtime.positions import rope_positions
from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.metadata import SampleMetadata, Visual
from trimtab.schema.number_of import number_of
from trimtab.schema.table import UNKNOWN, MetadataTable
from trimtab.schema.table_file import read_table


class SampleReader:
    """Samples by their row of the metadata table."""

    def __init__(
        self,
        table: MetadataTable,
        dataset: Dataset,
        *,
        geometry: VisionGeometry,
        family: Family,
        tokenizer: Any,
        model: PreTrainedModel,
        train_on: TrainOn,
    ) -> None:
        """Read from an opened dataset; ``open_reader`` checks that the parts belong together.

        Args:
            table: the scanned samples.
            dataset: the files it was scanned from.
            geometry: what it was scanned for.
            family: of the model.
            tokenizer: of the model.
            model: asked for rotary positions.
            train_on: which assistant turns enter the loss.
        """
        self.table = table
        self.geometry = geometry
        self._dataset = dataset
        self._media = MediaReader(table, dataset, geometry)
        self._family = family
        self._tokenizer = tokenizer
        self._model = model
        self._train_on = train_on

    @property
    def pad_token(self) -> int:
        """A token to fill with."""
        token = self._tokenizer.pad_token_id
        return int(token if token is not None else self._tokenizer.eos_token_id or 0)

    @property
    def placeholders(self) -> tuple[int, ...]:
        """The tokens that stand for visuals."""
        return tuple(int(self._tokenizer.convert_tokens_to_ids(token)) for token in self._tokens().values())

    def digest(self) -> str:
        """Sixteen hex digits over the dataset files, the sizes of all samples and their order."""
        state = blake2b(self._dataset.digest().encode(), digest_size=8)
        for column in (self.table.text_tokens, self.table.loss_tokens, self.table.dataset_row, self.table.grid_thw):
            state.update(column.tobytes())
        return state.hexdigest()

    def decode_task(self, row: int, visual: int, frame_start: int, frame_stop: int) -> DecodeTask:
        """The task that decodes temporal patches of the ``visual``-th visual of a sample."""
        return self._media.decode_task(row, visual, frame_start, frame_stop)

    def encode(self, row: int, *, expected_tokens: int) -> PackableSample:
        """Tokens, positions and loss weights of a sample.

        Raises:
            DatasetError: the record cannot be read, or no longer has the tokens it was planned with.
        """
        sample = self.table.sample(row)
        encoded = encode(
            self._conversation(row),
            sample.visuals,
            self._tokenizer,
            self._family,
            self.geometry,
            train_on=self._train_on,
        )
        if len(encoded) != expected_tokens:
            raise DatasetError(
                f"sample {sample.sample_id}: has {number_of(len(encoded), 'token')}, scanned as {expected_tokens}: "
                "the dataset or the tokenizer changed since the scan; scan the dataset again"
            )
        input_ids = torch.from_numpy(encoded.input_ids)
        return PackableSample(
            input_ids=input_ids,
            position_ids=self._positions(sample, input_ids, torch.from_numpy(encoded.token_types).long()),
            loss_weights=torch.from_numpy(encoded.loss_weights) * sample.loss_weight,
        )

    def filler(self, row: int, *, tokens: int) -> PackableSample:
        """What runs in place of a sample that cannot be read: its planned shape and placeholders, no loss."""
        sample = self.table.sample(row)
        placeholders = {kind: self._tokenizer.convert_tokens_to_ids(token) for kind, token in self._tokens().items()}
        ids = [
            placeholders[visual.kind]
            for visual in sample.visuals
            for _ in range(visual.patches // self.geometry.merge_size**2)
        ]
        ids += [self.pad_token] * (tokens - len(ids))
        return PackableSample(
            input_ids=torch.tensor(ids, dtype=torch.int64),
            position_ids=torch.arange(tokens).expand(3, -1),
            loss_weights=torch.zeros(tokens),
        )

    def _tokens(self) -> dict[str, str]:
        return {"image": self._family.image_token, "video": self._family.video_token}

    def _conversation(self, row: int) -> Conversation:
        return self._dataset.conversation(int(self.table.dataset_index[row]), int(self.table.dataset_row[row]))

    def _positions(self, sample: SampleMetadata, input_ids: torch.Tensor, token_types: torch.Tensor) -> torch.Tensor:
        visuals = sample.visuals
        return rope_positions(
            self._model,
            input_ids,
            token_types,
            torch.tensor([(v.grid_t, v.grid_h, v.grid_w) for v in visuals], dtype=torch.int64).reshape(-1, 3),
            torch.tensor([visual.kind == "video" for visual in visuals], dtype=torch.bool),
            torch.tensor([self._seconds(visual) for visual in visuals]),
        )

    def _seconds(self, visual: Visual) -> float:
        if visual.kind == "image":
            return 1.0
        return seconds_per_patch(visual.frames or 0, frame_rate(visual), self.geometry)


def open_reader(
    table_path: Path,
    data: Sequence[str | Path],
    root: str | Path | None,
    *,
    allowed_roots: Sequence[str] = (),
    model_folder: Path,
    checkpoint: Checkpoint,
    model: PreTrainedModel,
    train_on: TrainOn,
) -> SampleReader:
    """Open a table with the dataset it was scanned from, for a model.

    Raises:
        MetadataError: the table was made from other files, for another model, or by something else than a scan.
        DatasetError: a dataset file is missing or malformed.
        SettingsError: the model folder has no tokenizer.
    """
    table = read_table(table_path)
    if (table.dataset_row == UNKNOWN).any():
        raise MetadataError(f"{table_path}: does not say where its samples lie; make it with `trimtab scan`")
    dataset = open_scanned(table, list(data), root, allowed_roots=allowed_roots)
    geometry = table.geometry or checkpoint.geometry
    of_model = checkpoint.geometry
    table.check_geometry(
        replace(
            geometry,
            family=of_model.family,
            patch_size=of_model.patch_size,
            merge_size=of_model.merge_size,
            temporal_patch_size=of_model.temporal_patch_size,
        )
    )
    return SampleReader(
        table,
        dataset,
        geometry=geometry,
        family=checkpoint.family,
        tokenizer=load_tokenizer(model_folder),
        model=model,
        train_on=train_on,
    )
