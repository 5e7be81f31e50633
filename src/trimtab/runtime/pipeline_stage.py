"""One stage of a vision-language model: its own forward, with the layers of other stages left out.

No model code is repeated: a stage is the structure of the whole model in which absent layers pass their input on. What
the stage before sent enters in the place of the last absent layer before its own, and what goes on is read at the first
absent one after. So masks, rotary positions, windows and deepstack are the model's own work on every stage, and weights
keep their names.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trimtab.runtime.loss import step_loss
from trimtab.runtime.model_layers import ModelLayers
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.runtime.pipeline_shapes import BatchShape, Boundaries, fill_up, shape_of
from trimtab.runtime.vlm import encoder_outputs, token_scores
from trimtab.schema.routes import LocalRoute


@dataclass(frozen=True, eq=False, kw_only=True)
class StepInputs:
    """What the stages of one rank need of a step.

    Attributes:
        batches: its micro-batches.
        denominator: of the loss, over all ranks and micro-batches.
        largest: rows every sent tensor is filled up to.
    """

    batches: Sequence[PackedBatch]
    denominator: float
    largest: BatchShape


class AbsentLayer(nn.Module):
    """A layer of another stage: passes its input on, or gives what arrived in its place; remembers its input."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: Tensor | None = None
        self.passed: Tensor | None = None

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        """See the class."""
        self.passed = hidden
        return hidden if self.arrived is None else self.arrived


class AbsentEmbedding(nn.Module):
    """An embedding of another stage: zeros of the right shape, without memory."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.width, self.dtype = width, dtype

    def forward(self, inputs: Tensor, *_: Any, **__: Any) -> Tensor:
        """[*rows, width] for ids [*rows] or patches [rows, values]."""
        rows = inputs.shape[:1] if inputs.is_floating_point() else inputs.shape
        return torch.zeros((), dtype=self.dtype, device=inputs.device).expand(*rows, self.width)


class AbsentProjector(AbsentLayer):
    """A projector of another stage: gives what arrived in its place, or zeros; remembers its input."""

    def __init__(self, merged_patches: int) -> None:
        super().__init__()
        self.merged_patches = merged_patches

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        """[visual tokens, width]; one column of zeros where nobody reads them."""
        self.passed = hidden
        return hidden.new_zeros(len(hidden) // self.merged_patches, 1) if self.arrived is None else self.arrived


class StageModule(nn.Module):
    """Layers ``first:stop`` of a model; its weights are those of the model, not copies.

    Attributes:
        first, stop: rows of ``layers.layers``.
        model: the structure of the whole model with the other layers absent.
    """

    def __init__(self, layers: ModelLayers, first: int, stop: int) -> None:
        """Leave out the other layers.

        Args:
            layers: of the whole model.
            first: its first layer.
            stop: the layer after its last.
        """
        super().__init__()
        self.first, self.stop = first, stop
        self._boundaries = Boundaries.of(layers)
        self._layers = len(layers)
        self._projector = layers.vision
        self.model = partial_model(layers, first, stop, self._boundaries)
        self._entry = None if first == 0 else self._absent(layers, first - 1)
        self._exit = None if stop == len(layers) else self._absent(layers, stop)
        self._deepstack = [self.model.get_submodule(path) for path in layers.deepstack_projectors]
        self._tower = self.model.get_submodule(layers.parts.tower)
        self._step: StepInputs | None = None

    def _absent(self, layers: ModelLayers, row: int) -> AbsentLayer:
        """What stands for a layer: for the head its norm, which sees the hidden rows of all tokens."""
        layer = layers.layers[row]
        found = self.model.get_submodule(layers.parts.final_norm if layer.kind == "head" else layer.name)
        assert isinstance(found, AbsentLayer)
        return found

    def begin(self, step: StepInputs | None) -> None:
        """Take the micro-batches of a step; None lets go of them."""
        self._step = step

    def forward(self, *received: Tensor, micro_batch: Tensor) -> Any:
        """Run one micro-batch.

        Args:
            received: what the stage before sent, filled up.
            micro_batch: int64 [1], its number in the step.

        Returns:
            What the next stage receives, filled up; from the last stage its share of the loss, a scalar.
        """
        assert self._step is not None
        batch = self._step.batches[int(micro_batch)]
        held = shape_of(batch)
        shapes = self._boundaries.shapes(self.first, held)
        hidden, features = self._split([rows[: shape[0]] for rows, shape in zip(received, shapes, strict=True)])
        try:
            if self.first <= self._projector:
                hidden, features = self._encode(batch, held, hidden, features)
            if self.stop == self._layers:
                return self._loss(batch, hidden, features)
            if self.stop > self._projector + 1:
                hidden = self._decode(batch, hidden, features)
        finally:
            self._forget()
        assert hidden is not None
        return self._filled(hidden, [features[index] for index in self._boundaries.features(self.stop)])

    def _split(self, received: list[Tensor]) -> tuple[Tensor | None, dict[int, Tensor]]:
        """Hidden rows, and deepstack features by number."""
        if not received:
            return None, {}
        numbers = self._boundaries.features(self.first)
        parts = received[1].split(self._boundaries.language_width, dim=1) if len(received) > 1 else ()
        return received[0], dict(zip(numbers, parts, strict=True)) if parts else {}

    def _filled(self, hidden: Tensor, features: list[Tensor]) -> tuple[Tensor, ...]:
        assert self._step is not None
        shapes = self._boundaries.shapes(self.stop, self._step.largest)
        sent = [hidden, torch.cat(features, dim=1)] if features else [hidden]
        return tuple(_trainable(fill_up(rows, shape[0])) for rows, shape in zip(sent, shapes, strict=True))

    def _encode(
        self, batch: PackedBatch, held: BatchShape, hidden: Tensor | None, features: dict[int, Tensor]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """The vision tower's part: hidden rows of the patches or, past the projector, rows of the visual tokens."""
        pixels = batch.pixel_values
        if self._entry is not None and hidden is not None:
            self._entry.arrived = hidden
            pixels = hidden.new_zeros(()).expand(held.patches, 1)
        for number, feature in features.items():
            projector: Any = self._deepstack[number]
            projector.arrived = feature
        tower: Any = self._tower
        output = tower(pixels, grid_thw=batch.unit_grid_thw)
        given = dict(enumerate(getattr(output, "deepstack_features", None) or []))
        if self.stop > self._projector:
            return output.pooler_output, given
        assert self._exit is not None
        assert self._exit.passed is not None
        return self._exit.passed, given

    def _decode(self, batch: PackedBatch, hidden: Tensor | None, features: dict[int, Tensor]) -> Tensor:
        """The language model's part: hidden rows of the tokens."""
        self._run(batch, hidden, features)
        assert self._exit is not None
        assert self._exit.passed is not None
        return self._exit.passed[0]

    def _loss(self, batch: PackedBatch, hidden: Tensor | None, features: dict[int, Tensor]) -> Tensor:
        """The language model's part with the head: this micro-batch's share of the loss."""
        assert self._step is not None
        scores = token_scores(self._run(batch, hidden, features), batch.targets)
        return step_loss(scores.loss, batch.loss_weights, self._step.denominator)

    def _run(self, batch: PackedBatch, hidden: Tensor | None, features: dict[int, Tensor]) -> Tensor:
        """[K, vocabulary], the logits of the loss tokens; anything where the head is absent."""
        visual = None
        if self.first > self._projector + 1 and hidden is not None:
            assert self._entry is not None
            self._entry.arrived = hidden[None]
            visual = next(iter(features.values())).new_zeros(()) if features else None
        elif hidden is not None:
            visual = hidden
        model: Any = self.model
        output = model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            mm_encoder_outputs=self._visual_outputs(batch, visual, features),
            logits_to_keep=batch.loss_positions,
            packed_lengths=batch.packed_lengths,
            use_cache=False,
        )
        logits: Tensor = output.logits[0]
        return logits

    def _visual_outputs(
        self, batch: PackedBatch, visual: Tensor | None, features: dict[int, Tensor]
    ) -> dict[str, Any] | None:
        """``mm_encoder_outputs`` from encoded rows; features of layers on other stages are zeros that nobody reads."""
        if visual is None or batch.visual_route is None:
            return None
        width, rows = self._boundaries.language_width, shape_of(batch).patches // self._boundaries.merged_patches
        absent = visual.new_zeros(()).expand(rows, width)
        parts = [visual.expand(rows, width) if visual.ndim == 0 else visual]
        parts += [features.get(number, absent) for number in range(len(self._deepstack))]
        placed = place_rows(torch.cat(parts, dim=1), batch.visual_route)
        return encoder_outputs(placed, batch.visual_is_video, width)

    def _forget(self) -> None:
        """Let go of activations, so that only autograd holds them."""
        for module in (self._entry, self._exit, *self._deepstack):
            if isinstance(module, AbsentLayer):
                module.arrived = module.passed = None


def partial_model(layers: ModelLayers, first: int, stop: int, boundaries: Boundaries) -> PreTrainedModel:
    """The structure of the model, sharing the weights of layers ``first:stop``, with the others absent."""
    model, parts = layers.model, layers.parts
    widths = {
        parts.patch_embedding: boundaries.vision_width,
        parts.position_embedding: boundaries.vision_width,
        parts.token_embedding: boundaries.language_width,
    }
    shared: list[Any] = [*model.parameters(), *model.buffers(), model.config]
    copies: dict[int, Any] = {id(item): item for item in shared}
    for row, layer in enumerate(layers.layers):
        for path in layers.owned_modules(layer) if not first <= row < stop else ():
            absent: nn.Module = AbsentLayer()
            if path in widths:
                absent = AbsentEmbedding(widths[path], boundaries.dtype)
            elif path == parts.projector or path in layers.deepstack_projectors:
                absent = AbsentProjector(boundaries.merged_patches)
            copies[id(model.get_submodule(path))] = absent
    return copy.deepcopy(model, copies)


def place_rows(rows: Tensor, route: LocalRoute) -> Tensor:
    """Encoded rows [n, D] in the order of their placeholders on the same rank, [route.result_rows, D]."""
    sent = torch.as_tensor(route.send_rows, device=rows.device)
    places = torch.as_tensor(route.receive_rows, device=rows.device)
    return rows.new_zeros(route.result_rows, rows.shape[1]).index_copy(0, places, rows[sent])


def _trainable(sent: Tensor) -> Tensor:
    """What is sent takes a gradient back even where nothing before it trains."""
    return sent if sent.requires_grad or not torch.is_grad_enabled() else sent.detach().requires_grad_()
