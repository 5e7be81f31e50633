"""Where the pixels of a table's samples come from: the tasks that decode them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trimtab.errors import MetadataError
from trimtab.loader.executors.decode_task import DecodeTask
from trimtab.loader.scanned_dataset import open_scanned
from trimtab.loader.sources import Dataset, VisualSource
from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.table import UNKNOWN, MetadataTable


class MediaReader:
    """Decode tasks by row of the metadata table; needs no model and no tokenizer."""

    def __init__(self, table: MetadataTable, dataset: Dataset, geometry: VisionGeometry) -> None:
        """Read the media of ``table``, scanned from ``dataset`` for ``geometry``."""
        self.table, self.dataset, self.geometry = table, dataset, geometry
        self._last_read: tuple[int, tuple[VisualSource, ...]] = (-1, ())

    def decode_task(self, row: int, visual: int, frame_start: int, frame_stop: int) -> DecodeTask:
        """The task that decodes temporal patches of the ``visual``-th visual of a sample.

        Raises:
            DatasetError: the record cannot be read, or its media lies outside the allowed roots.
        """
        described = self.table.visual(int(self.table.visual_offsets[row]) + visual)
        source = self._visuals(row)[visual]
        return DecodeTask(
            visual=replace(described, source=source.uri),
            geometry=self.geometry,
            frame_start=frame_start,
            frame_stop=frame_stop,
            data=source.data,
        )

    def _visuals(self, row: int) -> tuple[VisualSource, ...]:
        """What the record names: where that lies is decided now, not when it was scanned."""
        last, visuals = self._last_read
        if last != row:
            place = int(self.table.dataset_index[row]), int(self.table.dataset_row[row])
            visuals = self.dataset.conversation(*place).visuals
            self._last_read = row, visuals
        return visuals


def open_media_reader(
    table: MetadataTable,
    data: str | Path | Sequence[str | Path],
    root: str | Path | None = None,
    *,
    allowed_roots: Sequence[str | Path] = (),
) -> MediaReader:
    """Open the dataset a table was scanned from; see ``open_scanned`` for the other arguments.

    Raises:
        MetadataError: the table was made from other files, or by something else than a scan.
        DatasetError: a dataset file is missing or malformed.
    """
    if table.geometry is None or (table.dataset_row == UNKNOWN).any():
        raise MetadataError("the table does not say where its samples lie; make it with `trimtab scan`")
    return MediaReader(table, open_scanned(table, data, root, allowed_roots=allowed_roots), table.geometry)
