"""Reads and writes metadata tables: Parquet, and flat Parquet or CSV tables of ``vision_tiles``."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from trimtab.errors import MetadataError, SettingsError
from trimtab.schema.csv_line import line_of_row
from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.output_file import check_writable, partial_of
from trimtab.schema.table import UNKNOWN, DatasetFile, MetadataTable
from trimtab.schema.table_columns import (
    check_flat,
    check_names,
    column,
    integers,
    or_nan,
    or_unknown,
    sizes,
    texts,
)

_PREFIX = "trimtab."
_FLAT_GRID = (1, 32, 32)
_FLAT_MERGE = 2
_MOST_TOKENS = 2**31 - 1
_MOST_SIDE = 2**20
_MOST_TILES = 50_000_000
"""Larger sizes are mistakes: a visual has a grid of some hundred patches a side, a sample some thousand tiles."""
_IDS = ("sample_id", "id")
_AXES = ("grid_t", "grid_h", "grid_w")
_VISUAL = pa.struct(
    [
        pa.field("kind", pa.string()),
        *(pa.field(name, pa.int32()) for name in _AXES),
        pa.field("source", pa.string()),
        *(pa.field(name, pa.int32()) for name in ("width", "height", "frames")),
        pa.field("seconds", pa.float64()),
        pa.field("token_offset", pa.int32()),
    ]
)


def write_table(table: MetadataTable, path: str | Path) -> None:
    """Write a table as Parquet; the file appears whole or not at all.

    Raises:
        SettingsError: the file cannot be written.
    """
    target = Path(path)
    check_writable(target, replaced=True)
    partial = partial_of(target)
    try:
        pq.write_table(_to_arrow(table), partial)
        os.replace(partial, target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SettingsError(f"{target}: cannot be written ({error}); free space or choose another path") from error


def read_table(path: str | Path) -> MetadataTable:
    """Read a table that ``scan`` wrote, or a flat Parquet or CSV table.

    A flat table has ``text_tokens`` and ``vision_tiles`` (n images of 1x32x32 patches, merged by 2); ``loss_tokens``
    defaults to ``text_tokens``, ``loss_weight`` to 1 and ``sample_id`` to ``id``, or to the row number.

    Raises:
        MetadataError: the file is missing or unreadable, a column is missing, named twice or otherwise than it should
            be, or holds nulls or bad values, or no sample has a token (in a flat table: one has none).
    """
    source = Path(path)
    if not source.is_file():
        raise MetadataError(f"{source}: no such file; write it with `trimtab scan`")
    try:
        is_text = source.suffix.lower() == ".csv"
        arrow = pyarrow.csv.read_csv(source) if is_text else pq.ParquetFile(source).read()
    except (pa.ArrowException, OSError) as error:
        kind = "CSV" if is_text else "Parquet"
        raise MetadataError(
            f"{source}: not a readable {kind} file ({error}); restore it (tables are Parquet, or CSV if named .csv)"
        ) from error
    try:
        check_names(arrow.column_names)
        if "visuals" not in arrow.column_names:
            return _with_tokens(_from_flat(arrow), scanned=False)
        return _with_tokens(_from_arrow(arrow), scanned=bool(_stored(arrow)))
    except MetadataError as error:
        raise _placed(error, source, is_text) from error
    except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
        remedy = "scan the dataset again" if _stored(arrow) else "correct it, or scan the dataset"
        raise MetadataError(
            f"{source}: a column or the file's metadata holds what no scan writes ({error}); {remedy}"
        ) from error


def _placed(error: MetadataError, source: Path, is_text: bool) -> MetadataError:
    """The error with the file's name, and where in it the row stands."""
    if error.row is None:
        return MetadataError(f"{source}: {error}")
    line = line_of_row(source, error.row) if is_text else None
    where = f"{source}, line {line}" if line else str(source)
    count = " (rows count from 0)" if f"row {error.row}" in str(error) else ""
    return MetadataError(f"{where}: {error}{count}", row=error.row)


def _with_tokens(table: MetadataTable, scanned: bool) -> MetadataTable:
    """Refuse samples without work; a scan's are its dataset's, as long as there is any work."""
    held = table.text_tokens + np.diff(table.visual_offsets)
    if not held.any():
        raise MetadataError("no sample has a token or a visual, so there is no work to plan; correct the columns")
    if not scanned and not held.all():
        row = int(np.argmin(held))
        raise MetadataError(
            f"sample {table.sample_ids[row].as_py()!r} (row {row}) has no token and no visual "
            f"({int((held == 0).sum())} such in all); leave it out",
            row=row,
        )
    return table


def _stored(arrow: pa.Table) -> dict[str, str]:
    """What a scan says of its table; empty for a table that was not scanned."""
    stored = {key.decode(): value.decode() for key, value in (arrow.schema.metadata or {}).items()}
    return {key.removeprefix(_PREFIX): value for key, value in stored.items() if key.startswith(_PREFIX)}


def _to_arrow(table: MetadataTable) -> pa.Table:
    known = {
        name: pa.array(getattr(table, name), pa.int32(), mask=getattr(table, name) == UNKNOWN)
        for name in ("width", "height", "frames", "token_offset")
    }
    columns = {
        "kind": pa.array(np.where(table.is_video, "video", "image"), pa.string()),
        **{name: pa.array(table.grid_thw[:, axis], pa.int32()) for axis, name in enumerate(_AXES)},
        "source": table.sources,
        "seconds": pa.array(table.seconds, pa.float64(), mask=np.isnan(table.seconds)),
        **known,
    }
    visuals = pa.StructArray.from_arrays([columns[field.name] for field in _VISUAL], fields=list(_VISUAL))
    arrow = pa.table(
        {
            "sample_id": table.sample_ids,
            "text_tokens": pa.array(table.text_tokens, pa.int32()),
            "loss_tokens": pa.array(table.loss_tokens, pa.int32()),
            "loss_weight": table.loss_weight,
            "visuals": pa.ListArray.from_arrays(pa.array(table.visual_offsets, pa.int32()), visuals),
            "dataset_index": pa.array(table.dataset_index, pa.int32(), mask=table.dataset_index == UNKNOWN),
            "dataset_row": pa.array(table.dataset_row, pa.int64(), mask=table.dataset_row == UNKNOWN),
        }
    )
    return arrow.replace_schema_metadata({f"{_PREFIX}{key}": value for key, value in _key_values(table).items()})


def _key_values(table: MetadataTable) -> dict[str, str]:
    geometry = table.geometry.to_metadata() if table.geometry else {"merge_size": str(table.merge_size)}
    return {**geometry, "files": json.dumps([asdict(file) for file in table.files]), "root": table.root}


def _from_arrow(arrow: pa.Table) -> MetadataTable:
    metadata = _stored(arrow)
    geometry = VisionGeometry.from_metadata(metadata) if "family" in metadata else None
    lists = arrow.column("visuals").combine_chunks()
    if not pa.types.is_list(lists.type) or not pa.types.is_struct(lists.type.value_type):
        remedy = "scan the dataset again" if metadata else "leave it out and give vision_tiles, or scan the dataset"
        raise MetadataError(f"column visuals is {lists.type}, not a list of structs; {remedy}")
    counts = lists.value_lengths().fill_null(0).to_numpy()
    visuals = lists.flatten()
    fields = {visuals.type.field(index).name: values for index, values in enumerate(visuals.flatten())}
    kinds = np.array(texts("visuals.kind", fields.get("kind")).to_pylist(), dtype=object)
    if unknown := sorted(set(kinds) - {"image", "video"}):
        raise MetadataError(f"visual kind {unknown[0]!r} is unknown; known: image, video")
    return MetadataTable(
        **_sample_columns(arrow),
        visual_offsets=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
        is_video=(kinds == "video").astype(np.bool_),
        grid_thw=np.stack([sizes(f"visuals.{axis}", fields.get(axis), _MOST_SIDE) for axis in _AXES], axis=1),
        sources=texts("visuals.source", fields.get("source")),
        width=or_unknown("visuals.width", fields.get("width"), len(visuals)),
        height=or_unknown("visuals.height", fields.get("height"), len(visuals)),
        frames=or_unknown("visuals.frames", fields.get("frames"), len(visuals)),
        token_offset=or_unknown("visuals.token_offset", fields.get("token_offset"), len(visuals)),
        seconds=or_nan("visuals.seconds", fields.get("seconds"), len(visuals)),
        merge_size=geometry.merge_size if geometry else int(metadata.get("merge_size", _FLAT_MERGE)),
        geometry=geometry,
        files=tuple(DatasetFile(**file) for file in json.loads(metadata.get("files", "[]"))),
        root=metadata.get("root", ""),
    )


def _from_flat(arrow: pa.Table) -> MetadataTable:
    check_flat(arrow.column_names)
    tiles = integers("vision_tiles", column(arrow, "vision_tiles"))
    if (tiles < 0).any():
        row = int(np.argmax(tiles < 0))
        raise MetadataError(f"row {row}: vision_tiles={tiles[row]} is negative; correct it", row=row)
    count = int(tiles.sum())
    if count > _MOST_TILES:
        raise MetadataError(
            f"vision_tiles add up to {count}, more than the {_MOST_TILES} a flat table may hold (row "
            f"{int(tiles.argmax())} has {int(tiles.max())}); correct it, or plan a part of the table",
            row=int(tiles.argmax()),
        )
    unknown = np.full(count, UNKNOWN, dtype=np.int64)
    return MetadataTable(
        **_sample_columns(arrow),
        visual_offsets=np.concatenate([[0], np.cumsum(tiles)]).astype(np.int64),
        is_video=np.zeros(count, dtype=np.bool_),
        grid_thw=np.tile(np.array(_FLAT_GRID, dtype=np.int64), (count, 1)),
        sources=pa.array([""] * count, pa.string()),
        width=unknown,
        height=unknown,
        frames=unknown,
        token_offset=unknown,
        seconds=np.full(count, np.nan),
        merge_size=_FLAT_MERGE,
    )


def _sample_columns(arrow: pa.Table) -> dict[str, Any]:
    text = sizes("text_tokens", column(arrow, "text_tokens"), _MOST_TOKENS)
    loss = text
    if "visuals" in arrow.column_names or "loss_tokens" in arrow.column_names:
        loss = sizes("loss_tokens", column(arrow, "loss_tokens"), _MOST_TOKENS)
    if (loss > text).any():
        row = int(np.argmax(loss > text))
        raise MetadataError(
            f"row {row} has {int(loss[row])} loss_tokens but {int(text[row])} text_tokens, of which they are part; "
            "correct it",
            row=row,
        )
    weight = column(arrow, "loss_weight")
    called = next((name for name in _IDS if name in arrow.column_names), _IDS[0])
    names = column(arrow, called)
    if names is None:
        names = pa.array([str(row) for row in range(len(text))], pa.string())
    return {
        "sample_ids": texts(called, names),
        "text_tokens": text,
        "loss_tokens": loss,
        "loss_weight": np.ones(len(text)) if weight is None else or_nan("loss_weight", weight, len(text)),
        "dataset_index": or_unknown("dataset_index", column(arrow, "dataset_index"), len(text)),
        "dataset_row": or_unknown("dataset_row", column(arrow, "dataset_row"), len(text)),
    }
