"""Where the pixels of a table's samples come from: the tasks that decode them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trimtab.errors import MetadataError
from trimtab.loader.executors.decode_task import DecodeTask
from trimtab.loader.sources import Dataset, open_dataset
from trimtab.media.archive_member import parse_member
from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.table import UNKNOWN, MetadataTable


class MediaReader:
    """Decode tasks by row of the metadata table; needs no model and no tokenizer."""

    def __init__(self, table: MetadataTable, dataset: Dataset, geometry: VisionGeometry) -> None:
        """Read the media of ``table``, scanned from ``dataset`` for ``geometry``."""
        self.table, self.dataset, self.geometry = table, dataset, geometry

    def decode_task(self, row: int, visual: int, frame_start: int, frame_stop: int) -> DecodeTask:
        """The task that decodes temporal patches of the ``visual``-th visual of a sample.

        Raises:
            DatasetError: the media lies in the record, which cannot be read, or outside the allowed roots.
        """
        described = self.table.visual(int(self.table.visual_offsets[row]) + visual)
        self.dataset.allowed.check(described.source, f"sample {self.table.sample_ids[row].as_py()}")
        data = None
        if "#" in described.source and parse_member(described.source) is None:
            place = int(self.table.dataset_index[row]), int(self.table.dataset_row[row])
            data = self.dataset.conversation(*place).visuals[visual].data
        return DecodeTask(
            visual=described,
            geometry=self.geometry,
            frame_start=frame_start,
            frame_stop=frame_stop,
            data=data,
        )


def open_media_reader(
    table: MetadataTable,
    data: str | Path | Sequence[str | Path],
    root: str | Path | None = None,
    *,
    allowed_roots: Sequence[str | Path] = (),
) -> MediaReader:
    """Open the dataset a table was scanned from; see ``open_dataset`` for the other arguments.

    Raises:
        MetadataError: the table was made from other files, or by something else than a scan.
        DatasetError: a dataset file is missing or malformed.
    """
    if table.geometry is None or (table.dataset_row == UNKNOWN).any():
        raise MetadataError("the table does not say where its samples lie; make it with `trimtab scan`")
    dataset = open_dataset(data, root, allowed_roots=allowed_roots)
    table.check_files(dataset.files)
    return MediaReader(table, dataset, table.geometry)
