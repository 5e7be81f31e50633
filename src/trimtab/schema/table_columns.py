"""Columns of a metadata table, as numbers; what is wrong with one is said by its name and row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trimtab.errors import MetadataError
from trimtab.schema.table import UNKNOWN

FLAT_NEEDED = ("text_tokens", "vision_tiles")
KNOWN = (
    "sample_id",
    "text_tokens",
    "loss_tokens",
    "loss_weight",
    "visuals",
    "vision_tiles",
    "dataset_index",
    "dataset_row",
)
_SHOWN = 8
_SEPARATORS = ";\t|"


def check_names(names: Sequence[str]) -> None:
    """Refuse columns that would be overlooked: named twice, spelt another way, or not told apart.

    Raises:
        MetadataError: names the column and what to call it.
    """
    if len(names) == 1 and (found := [mark for mark in _SEPARATORS if mark in names[0]]):
        raise MetadataError(f"the only column is {names[0]!r}: its cells are separated by {found[0]!r}; use commas")
    for name, count in Counter(names).items():
        if count > 1 and name in KNOWN:
            raise MetadataError(f"column {name} stands {count} times; leave one, or rename the others")
    for known in KNOWN:
        if known not in names and (alike := [name for name in names if _plain(name) == known]):
            raise MetadataError(f"found column {alike[0]!r}, meant {known}? name it so")


def check_flat(names: Sequence[str]) -> None:
    """Refuse a table that was not scanned and lacks what it needs.

    Raises:
        MetadataError: names the columns missing, and those there.
    """
    if missing := [name for name in FLAT_NEEDED if name not in names]:
        several = len(missing) > 1
        found = ", ".join(map(repr, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")
        raise MetadataError(
            f"{'columns' if several else 'column'} {' and '.join(missing)} {'are' if several else 'is'} missing among "
            f"{found}: a table that was not scanned needs text_tokens, and vision_tiles, images of 256 tokens each; "
            "name them so, or scan the dataset"
        )


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.strip().lower())


def column(arrow: pa.Table, name: str) -> pa.Array | None:
    """A column, or None where there is none of that name."""
    return arrow.column(name).combine_chunks() if name in arrow.column_names else None


def present(name: str, values: pa.Array | None) -> pa.Array:
    """A column with a value in every row.

    Raises:
        MetadataError: it is missing, or a value is.
    """
    if values is None:
        raise MetadataError(f"column {name} is missing; add it, or scan the dataset again")
    if values.null_count:
        row = values.is_null().index(True).as_py()
        raise MetadataError(
            f"column {name} has no value in row {row} ({values.null_count} in all); fill it in", row=row
        )
    return values


def texts(name: str, values: pa.Array | None) -> pa.Array:
    """A column as text.

    Raises:
        MetadataError: it is missing, or holds something else.
    """
    return _cast(name, present(name, values), pa.string(), "text")


def integers(name: str, values: pa.Array | None) -> NDArray[np.int64]:
    """A column of whole numbers.

    Raises:
        MetadataError: it is missing, or holds something else.
    """
    whole = _cast(name, present(name, values), pa.int64(), "whole numbers")
    return np.asarray(whole.to_numpy(zero_copy_only=False), dtype=np.int64)


def sizes(name: str, values: pa.Array | None, most: int) -> NDArray[np.int64]:
    """A column of whole numbers that are no mistakes.

    Raises:
        MetadataError: it is missing, or a value is above ``most``.
    """
    found = integers(name, values)
    if (found > most).any():
        row = int(np.argmax(found > most))
        raise MetadataError(
            f"column {name} holds {int(found[row])} in row {row}, more than {most}; correct it", row=row
        )
    return found


def or_unknown(name: str, values: pa.Array | None, length: int) -> NDArray[np.int64]:
    """A column of whole numbers, UNKNOWN where it has none.

    Raises:
        MetadataError: it holds something else.
    """
    if values is None:
        return np.full(length, UNKNOWN, dtype=np.int64)
    whole = _cast(name, values, pa.int64(), "whole numbers").fill_null(UNKNOWN)
    return np.asarray(whole.to_numpy(zero_copy_only=False), dtype=np.int64)


def or_nan(name: str, values: pa.Array | None, length: int) -> NDArray[np.float64]:
    """A column of numbers, NaN where it has none.

    Raises:
        MetadataError: it holds something else.
    """
    if values is None:
        return np.full(length, np.nan)
    numbers = _cast(name, values, pa.float64(), "numbers").fill_null(np.nan)
    return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)


def _cast(name: str, values: pa.Array, kind: Any, what: str) -> pa.Array:
    try:
        return values.cast(kind)
    except pa.ArrowException as error:
        raise MetadataError(
            f"column {name} must hold {what}, and is of {values.type} ({error}); correct it",
            row=_first_not(values, kind),
        ) from error


def _first_not(values: pa.Array, kind: Any) -> int | None:
    """The first row that is not of a kind, or None where none is; by halves, as a column may be long."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            values[low:middle].cast(kind)
            low = middle
        except pa.ArrowException:
            high = middle
    try:
        values[low:][1:].cast(kind)
    except pa.ArrowException:
        return None  # several: the column is of another kind
    return low
