"""What a family's batches look like as a collator gives them: for every key, what its rows belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.families.family import BatchRows
from trimtab.schema.metadata import VisualKind

Config = Mapping[str, Any]
Columns = Mapping[str, NDArray[Any]]

IGNORED_LABEL = -100

TOKEN_ROWS: Mapping[str, BatchRows] = MappingProxyType(
    dict.fromkeys(
        ("input_ids", "labels", "attention_mask", "position_ids", "token_type_ids", "loss_weights", "loss_mask"),
        "tokens",
    )
)
"""Keys any family's batch may have."""

PADDING: Mapping[str, float] = MappingProxyType({"labels": IGNORED_LABEL})
"""What fills a token key beyond a sample; 0 where it is not named. ``input_ids`` take the model's padding token."""


@dataclass(frozen=True, eq=False, kw_only=True)
class VisualSizes:
    """Sizes of the V visuals of one batch.

    Attributes:
        grid_thw: int64 [V, 3], patches before merging: what encoding them costs.
        pixel_rows: int64 [V], rows of the pixel tensor.
        tokens: int64 [V], placeholders in the text; 0 for a visual that no sample uses.
    """

    grid_thw: NDArray[np.int64]
    pixel_rows: NDArray[np.int64]
    tokens: NDArray[np.int64]


Measure = Callable[[Config, Columns, tuple[int, ...]], VisualSizes]


@dataclass(frozen=True, kw_only=True)
class VisualStream:
    """One kind of visual in a batch.

    Attributes:
        kind: "image" or "video".
        placeholder_keys: names under which a model's config may hold the id of its placeholder token.
        pixels: batch key of the pixels.
        pixel_rows: what a row of them is; "tiles" where a visual is one or more tiles.
        padded: pixels come as [V, most tiles, ...], filled up with zeros.
        beside: batch keys with one row for each visual.
        measure: ``(config, columns of the keys beside and of samples, shape of the pixels)`` -> sizes.
        smallest: ``(config)`` -> the columns beside of the smallest visual the model takes, for ranks that have none.
        token_type: value of ``mm_token_type_ids`` at its placeholders.
    """

    kind: VisualKind
    placeholder_keys: tuple[str, ...]
    pixels: str
    pixel_rows: BatchRows
    padded: bool = False
    beside: tuple[str, ...] = ()
    measure: Measure
    smallest: Callable[[Config], dict[str, list[Any]]]
    token_type: int


@dataclass(frozen=True, kw_only=True)
class BatchLayout:
    """A family's batches.

    Attributes:
        family: its name.
        rows: for every batch key that is not a stream's, what its rows belong to ("tokens" or "samples").
        streams: its kinds of visuals.
        merge_size: ``(config)`` -> patches merged into one token along each spatial axis, for costs.
        samples_from_visuals: sample keys that hold the number of the sample's visuals of the first stream.
    """

    family: str
    rows: Mapping[str, BatchRows]
    streams: tuple[VisualStream, ...]
    merge_size: Callable[[Config], int]
    samples_from_visuals: tuple[str, ...] = ()

    def all_rows(self) -> dict[str, BatchRows]:
        """For every batch key, what its rows belong to."""
        rows = dict(self.rows)
        for stream in self.streams:
            rows[stream.pixels] = stream.pixel_rows
            rows.update(dict.fromkeys(stream.beside, "visuals"))
        return rows
