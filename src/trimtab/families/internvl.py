"""InternVL: an image is one or more square tiles, every tile a fixed number of placeholders.

Both forms are read: Transformers' (tiles only), and InternVL's own training batches, where ``image_flags`` is 0 for a
tile that only keeps the shape of a batch without images. A tile is the unit, and text ties tiles to samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.families.batch_layout import TOKEN_ROWS, BatchLayout, Columns, Config, VisualSizes, VisualStream

_TOKENS_OF_A_TILE = 256  # the checkpoints': 448 pixels, patches of 14, pixel shuffle by 2


def merge_size(config: Config) -> int:
    """Patches along one axis that pixel shuffle turns into one token."""
    return round(1 / float(config.get("downsample_ratio", 0.5)))


def _measure(config: Config, columns: Columns, pixel_shape: tuple[int, ...]) -> VisualSizes:
    tiles, side = pixel_shape[0], pixel_shape[-1]
    patch = (config.get("vision_config") or {}).get("patch_size", 14)
    patches = side // int(patch[0] if isinstance(patch, list | tuple) else patch)
    flags = columns.get("image_flags")
    used = np.ones(tiles, dtype=np.int64) if flags is None else (np.asarray(flags).reshape(-1) != 0).astype(np.int64)
    return VisualSizes(
        grid_thw=np.tile(np.array([1, patches, patches], dtype=np.int64), (tiles, 1)),
        pixel_rows=np.ones(tiles, dtype=np.int64),
        tokens=used * int(config.get("image_seq_length", _TOKENS_OF_A_TILE)),
    )


def _smallest(config: Config) -> dict[str, list[Any]]:
    return {"image_flags": [0]}


INTERNVL_BATCHES = BatchLayout(
    family="internvl",
    rows=TOKEN_ROWS,
    streams=(
        VisualStream(
            kind="image",
            placeholder_keys=("image_token_id", "img_context_token_id"),
            pixels="pixel_values",
            pixel_rows="tiles",
            beside=("image_flags",),
            measure=_measure,
            smallest=_smallest,
            token_type=1,
        ),
    ),
    merge_size=merge_size,
)
