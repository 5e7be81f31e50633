"""Which rows a selection means, as tensors read it: places, counted from the end where negative, or a mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import MetadataError

Selection = Sequence[int] | Sequence[bool] | NDArray[np.integer] | NDArray[np.bool_]


def selected_rows(selection: Selection, count: int, what: str) -> NDArray[np.int64]:
    """Places (int64 [K], 0 to ``count`` - 1) that a selection of ``count`` rows means.

    Args:
        selection: places in any order, repeated or not, negative ones from the end; or a mask of ``count`` truths.
        count: how many there are.
        what: they are, for messages.

    Raises:
        MetadataError: it holds fractions, is a mask of another length, is no single row, or names a place outside.
    """
    given = np.asarray(selection)
    if given.ndim != 1:
        raise MetadataError(f"{what} are taken by a list of places or a mask, given an array of shape {given.shape}")
    if given.dtype == np.bool_:
        if len(given) != count:
            raise MetadataError(f"a mask over {count} {what} has {count} truths, given {len(given)}")
        return np.flatnonzero(given).astype(np.int64)
    if len(given) == 0:
        return np.empty(0, dtype=np.int64)
    if not np.issubdtype(given.dtype, np.integer):
        raise MetadataError(f"places of {what} are whole numbers, given {given.dtype} ({given[0]!r}, …)")
    outside = (given < -count) | (given >= count)
    if outside.any():
        raise MetadataError(f"place {given[outside][0]} is outside the {count} {what}")
    return np.where(given < 0, given + count, given).astype(np.int64)
