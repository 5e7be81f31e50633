"""Tells which layer of a model is being computed, forward and backward, from hooks on its modules.

Everything between the start of one layer and the start of the next belongs to the first: norms, projectors, the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn

from trimtab.runtime.model_layers import ModelLayers

Switch = Callable[[int, bool], None]


class LayerRegions:
    """Calls ``switch(row, backward)`` whenever another layer begins, between ``with`` and its end.

    Args:
        layers: of the model.
        switch: told the row of the layer.
        within: told the row of a transformer layer when it begins (True) and ends (False) in the forward.
    """

    def __init__(self, layers: ModelLayers, switch: Switch, within: Callable[[int, bool], None] | None = None) -> None:
        self._layers, self._switch, self._within = layers, switch, within
        self._handles: list[Any] = []
        self._backward = False

    def __enter__(self) -> Self:
        layers, parts = self._layers, self._layers.parts
        projector, head = layers.vision, len(layers) - 1
        self._before(parts.tower, 0)
        self._before(parts.token_embedding, projector + 1)
        self._before(parts.language, projector + 1)
        for row, layer in enumerate(layers.layers):
            if layer.can_recompute:
                self._before(layer.name, row)
                last = row + 1 in (projector, head)
                self._after(layer.name, row, row + 1 if last else None)
        self._after(parts.projector, projector, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def begin_backward(self) -> None:
        """The forward is over: the head's backward begins, and forwards from now on recompute."""
        self._backward = True
        self._switch(len(self._layers) - 1, True)

    def begin_forward(self) -> None:
        """Another forward begins."""
        self._backward = False
        self._switch(0, False)

    def _before(self, path: str, row: int) -> None:
        def begin(*_: Any) -> None:
            if not self._backward:
                self._switch(row, False)
                if self._within is not None and path == self._layers.layers[row].name:
                    self._within(row, True)

        self._handles.append(self._layers.module(path).register_forward_pre_hook(begin))

    def _after(self, path: str, row: int, following: int | None) -> None:
        def end(module: nn.Module, inputs: Any, output: Any) -> None:
            if self._backward:
                return
            if self._within is not None and self._layers.layers[row].can_recompute:
                self._within(row, False)
            if following is not None:
                self._switch(following, False)
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(lambda _: self._switch(row, True))

        self._handles.append(self._layers.module(path).register_forward_hook(end))
