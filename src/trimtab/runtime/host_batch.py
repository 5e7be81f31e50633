"""A host's micro-batch as samples: what a collator gives, taken apart, and what each sample holds.

Inside a `HostSample` every tensor has its rows first: token columns are [tokens, ...], pixels [rows, ...], grids
[visuals, 3]. So one rule moves all of them, whatever the family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trimtab.errors import SettingsError
from trimtab.families.batch_layout import PADDING, BatchLayout
from trimtab.families.family import BatchRows

HostBatch = dict[str, Any]
Form = Literal["padded", "padded-left", "packed"]

CUMULATIVE_KEYS = ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k")
LONGEST_KEYS = ("max_seqlen", "max_length_q", "max_length_k")
VISUAL_COLUMNS = ("stream", "grid_t", "grid_h", "grid_w", "pixel_rows", "tokens")


@dataclass(frozen=True, eq=False, kw_only=True)
class HostSample:
    """One sample of a host's micro-batch.

    Attributes:
        tensors: by batch key, rows first.
        tokens: its length without padding.
        loss_tokens: tokens whose prediction enters the loss; the first is never predicted.
        loss_weight: sum of their weights.
        visuals: int64 [v, 6], see ``VISUAL_COLUMNS``; grouped by stream, in placeholder order within each.
    """

    tensors: Mapping[str, Tensor]
    tokens: int
    loss_tokens: int
    loss_weight: float
    visuals: NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class MicroBatch:
    """A micro-batch taken apart.

    Attributes:
        samples: in the order they came.
        form: how it was laid out; None where that cannot be told (no padding anywhere).
        boundaries: dtypes of the segment-bound keys it had.
        constants: values that are no tensors; they stay on their rank.
        original: the host's own object.
    """

    samples: list[HostSample]
    form: Form | None
    boundaries: Mapping[str, Any]
    constants: Mapping[str, Any]
    original: HostBatch


class HostLayout:
    """A family's batch layout with a model's numbers filled in, and the host's own keys."""

    def __init__(
        self,
        layout: BatchLayout,
        config: Mapping[str, Any],
        *,
        rows: Mapping[str, BatchRows] | None = None,
        placeholders: Mapping[str, int] | None = None,
    ) -> None:
        """Bind a layout.

        Args:
            layout: of the model's family.
            config: the model's, ``model.config.to_dict()``.
            rows: for keys of the host's own, what their rows belong to: "tokens" or "samples".
            placeholders: token id by kind of visual, where the config names none.

        Raises:
            SettingsError: a placeholder id is missing, or a key of the host's own has another kind of rows.
        """
        self.layout = layout
        self.config = config
        self.own_rows = dict(rows or {})
        for key, kind in self.own_rows.items():
            if kind not in ("tokens", "samples"):
                raise SettingsError(f"rows[{key!r}]={kind!r}: keys of the host's own belong to 'tokens' or 'samples'")
        self.rows: dict[str, BatchRows] = {**layout.all_rows(), **self.own_rows}
        self.placeholders = [
            _placeholder(config, stream.kind, stream.placeholder_keys, placeholders or {}) for stream in layout.streams
        ]
        self.streams = layout.streams
        self.merge_size = layout.merge_size(config)
        text = config.get("text_config") or config.get("llm_config") or config
        self.pad_token = int(text.get("pad_token_id") or config.get("pad_token_id") or 0)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys that move, in one order on every rank."""
        return tuple(key for key in self.rows if key not in self.layout.samples_from_visuals)

    def stream_of(self, key: str) -> int | None:
        """Which stream's pixels or columns a key holds."""
        for index, stream in enumerate(self.streams):
            if key == stream.pixels or key in stream.beside:
                return index
        return None

    def padding(self, key: str) -> float:
        """What fills a token key beyond a sample."""
        return self.pad_token if key == "input_ids" else PADDING.get(key, 0)

    def shared(self) -> dict[str, Any]:
        """What must be equal on every rank, by name."""
        return {"family": self.layout.family, "placeholders": self.placeholders, "rows": self.rows}


def _placeholder(config: Mapping[str, Any], kind: str, names: tuple[str, ...], given: Mapping[str, int]) -> int:
    if kind in given:
        return int(given[kind])
    for name in names:
        if config.get(name) is not None:
            return int(config[name])
    raise SettingsError(
        f"the config has none of {', '.join(names)}, so {kind} placeholders cannot be found in the text; "
        f"give placeholders={{{kind!r}: token id}}"
    )
