"""What crosses from one pipeline stage to the next, and its shape: the largest of the step's micro-batches.

torch's pipeline stages send tensors of one shape. Only what is sent is filled up; stages compute on the rows there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.runtime.model_layers import ModelLayers
from trimtab.runtime.packed_batch import PackedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """Rows of one micro-batch, or the most over a step's.

    Attributes:
        patches: in the vision tower.
        tokens: in the language model.
    """

    patches: int
    tokens: int

    def rounded(self, multiple: int) -> BatchShape:
        """The least shape of multiples of ``multiple`` rows that holds this one."""
        patches, tokens = (-(-rows // multiple) * multiple for rows in (self.patches, self.tokens))
        return BatchShape(patches=patches, tokens=tokens)


def shape_of(batch: PackedBatch) -> BatchShape:
    """The rows of a micro-batch; a dummy image counts, as it is encoded."""
    return BatchShape(patches=int(batch.unit_grid_thw.prod(dim=1).sum()), tokens=batch.tokens)


def largest_shape(shapes: Sequence[BatchShape]) -> BatchShape:
    """The most patches and the most tokens of any."""
    return BatchShape(patches=max(shape.patches for shape in shapes), tokens=max(shape.tokens for shape in shapes))


@dataclass(frozen=True, kw_only=True)
class Boundaries:
    """What is sent before each layer of a model (V vision layers, D language width, F deepstack features).

    Up to the projector: the hidden rows of the patches, and the features that deepstack layers gave so far. After it:
    one row a visual token, features beside it. Between language layers: the hidden rows of the tokens, and the features
    that later layers still take.

    Attributes:
        vision_layers: V.
        vision_width, language_width: of hidden rows.
        merge_size: patches merged into one visual token along each spatial axis.
        deepstack_layers: [F], the vision layers that give features.
        dtype: of what is sent.
    """

    vision_layers: int
    vision_width: int
    language_width: int
    merge_size: int
    deepstack_layers: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(layers: ModelLayers) -> Boundaries:
        """Of a model."""
        config = layers.model.config
        return Boundaries(
            vision_layers=layers.vision,
            vision_width=int(getattr(config.vision_config, layers.parts.vision_width)),
            language_width=int(config.get_text_config().hidden_size),
            merge_size=int(config.vision_config.spatial_merge_size),
            deepstack_layers=layers.deepstack_layers,
            dtype=layers.model.dtype,
        )

    @property
    def merged_patches(self) -> int:
        """Patches that become one visual token."""
        return self.merge_size**2

    def features(self, layer: int) -> range:
        """Which deepstack features are sent before ``layer``."""
        if layer <= self.vision_layers + 1:
            return range(sum(index < layer for index in self.deepstack_layers))
        return range(min(layer - self.vision_layers - 1, len(self.deepstack_layers)), len(self.deepstack_layers))

    def shapes(self, layer: int, rows: BatchShape) -> list[tuple[int, int]]:
        """Shapes of the tensors sent before ``layer`` for a micro-batch of so many rows; none before the first."""
        visual_tokens = rows.patches // self.merged_patches
        features = (visual_tokens, len(self.features(layer)) * self.language_width)
        if layer == 0:
            return []
        if layer <= self.vision_layers:
            hidden = (rows.patches, self.vision_width)
        elif layer == self.vision_layers + 1:
            hidden = (visual_tokens, self.language_width)
        else:
            hidden = (rows.tokens, self.language_width)
        return [hidden, features] if features[1] else [hidden]

    def nbytes(self, layer: int, rows: BatchShape) -> int:
        """Bytes sent before ``layer``; as many come back as gradients."""
        return sum(height * width for height, width in self.shapes(layer, rows)) * self.dtype.itemsize

    def empty(self, layer: int, rows: BatchShape) -> tuple[Tensor, ...]:
        """Tensors of those shapes without memory, as torch's stages want to be told them."""
        return tuple(
            torch.empty(shape, dtype=self.dtype, device="meta", requires_grad=True)
            for shape in self.shapes(layer, rows)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that stages of one pipeline send one another in a step, gradients included.

    Attributes:
        sent: all of them.
        filling: those that only fill smaller micro-batches up to the largest.
    """

    sent: int
    filling: int

    @property
    def filling_share(self) -> float:
        """Share of what is sent that only fills up."""
        return self.filling / self.sent if self.sent else 0.0


def traffic(
    boundaries: Boundaries, bounds: Sequence[int], shapes: Sequence[BatchShape], largest: BatchShape
) -> Traffic:
    """Predict what a step sends, from the shapes of its micro-batches alone.

    Args:
        boundaries: of the model.
        bounds: first layer of each stage, and the number of layers.
        shapes: of the micro-batches.
        largest: the shape they are filled up to.
    """
    cuts = bounds[1:-1]
    sent = 2 * len(shapes) * sum(boundaries.nbytes(cut, largest) for cut in cuts)
    needed = 2 * sum(boundaries.nbytes(cut, shape) for cut in cuts for shape in shapes)
    return Traffic(sent=sent, filling=sent - needed)


def fill_up(rows: Tensor, length: int) -> Tensor:
    """``rows`` [n, D] with zero rows after them, [length, D]."""
    return rows if len(rows) == length else torch.cat([rows, rows.new_zeros(length - len(rows), rows.shape[1])])
