"""Bytes each layer keeps for its backward, holds while it runs, and would send to a next stage."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_iter

from trimtab.runtime.layer_regions import LayerRegions
from trimtab.runtime.memory_meter import MemoryMeter, batch_tensors, local_tensor, memory_meter
from trimtab.runtime.model_layers import ModelLayers

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerBytes:
    """Of one micro-batch, int64 [L] each.

    Attributes:
        kept: storages held from the layer's forward to its backward, its input among them; the micro-batch is not.
        workspace: held at most beside what is kept while the layer runs, in the forward or, the gradient of its output
            included, in the backward.
        boundary: sent if a stage ended after the layer.
    """

    kept: Counts
    workspace: Counts
    boundary: Counts


def layer_bytes(model: nn.Module, layers: ModelLayers, batch: Any, loss_of: Callable[[Any, Any], Tensor]) -> LayerBytes:
    """Run one micro-batch forward and backward; gradients of weights exist already."""
    given = batch_tensors(batch)
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    meter = memory_meter(layers.model.device, [*model.parameters(), *model.buffers(), *gradients], given)
    saved, outputs, extra = _Saved(layers, given), _Outputs(layers), _Extra(layers, meter)

    def switch(row: int, backward: bool) -> None:
        extra.switch(row, backward)
        saved.switch(row)

    outputs.on_output = saved.left
    with saved, outputs, meter, LayerRegions(layers, switch) as regions:
        regions.begin_forward()
        with saved_tensors_hooks(saved.pack, lambda tensor: tensor):
            loss = loss_of(model, batch)
        saved.release()
        regions.begin_backward()
        loss.backward()
        extra.end()
    workspace = np.maximum(extra.forward, extra.backward + outputs.hidden)
    return LayerBytes(kept=saved.kept, workspace=workspace, boundary=outputs.sent)


class _Hooks:
    """Removes its hooks when it is left."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


class _Saved(_Hooks):
    """Counts the storages kept for the backward, each by the layer that keeps it first.

    They are those autograd saves, and what layers that recompute are called with; weights and the micro-batch apart.
    """

    def __init__(self, layers: ModelLayers, given: list[Tensor]) -> None:
        super().__init__()
        self._model = layers.model
        self.kept = np.zeros(len(layers), dtype=np.int64)
        self._row, self._counting = 0, True
        self._seen: dict[int, Any] = {}
        self._given = {tensor.untyped_storage()._cdata for tensor in given}
        self._weights: set[int] = set()
        self._inputs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        for row, layer in enumerate(layers.layers):
            module: Any = layers.module(layer.name)
            if layer.can_recompute and getattr(module, "gradient_checkpointing", False):
                self._keep_arguments(module, row)

    def _keep_arguments(self, module: nn.Module, row: int) -> None:
        def begin(_: nn.Module, arguments: Any, keywords: Any) -> None:
            for value in tree_iter(keywords):
                if isinstance(value, Tensor):
                    self._keep(value, row)

        self._handles.append(module.register_forward_pre_hook(begin, with_kwargs=True))

    def switch(self, row: int) -> None:
        """Another layer begins."""
        self._row = row
        # asked anew each time: FSDP2 puts gathered weights in place of its shards while a layer runs
        weights = (local_tensor(weight.detach()) for weight in self._model.parameters())
        self._weights = {weight.untyped_storage()._cdata for weight in weights}

    def left(self, row: int, output: Tensor) -> None:
        """A layer left its output: the input of the next, whoever saves it first."""
        self._inputs[output.untyped_storage()] = row + 1

    def pack(self, tensor: Tensor) -> Tensor:
        """For ``saved_tensors_hooks``."""
        self._keep(tensor, self._row)
        return tensor

    def _keep(self, tensor: Tensor, row: int) -> None:
        storage = local_tensor(tensor).untyped_storage()
        key = storage._cdata
        if self._counting and key not in self._seen and key not in self._weights and key not in self._given:
            self._seen[key] = storage  # held, so that its address is not used again
            self.kept[self._inputs.get(storage, row)] += storage.nbytes()

    def release(self) -> None:
        """Let go of the storages; what the backward recomputes is not counted."""
        self._seen.clear()
        self._counting = False


class _Extra:
    """The most bytes a layer holds beside those it leaves behind (forward) or finds (backward)."""

    def __init__(self, layers: ModelLayers, meter: MemoryMeter) -> None:
        self._meter = meter
        self.forward, self.backward = (np.zeros(len(layers), dtype=np.int64) for _ in range(2))
        self._at: tuple[int, bool] | None = None
        self._found = 0

    def switch(self, row: int, backward: bool) -> None:
        """Another layer begins."""
        self.end()
        self._at, self._found = (row, backward), self._meter.live_bytes
        self._meter.forget_peak()

    def end(self) -> None:
        """The layer ends."""
        if self._at is None:
            return
        row, backward = self._at
        most = self.backward if backward else self.forward
        base = self._found if backward else max(self._meter.live_bytes, self._found)
        most[row] = max(most[row], self._meter.peak_bytes - base)
        self._at = None


class _Outputs(_Hooks):
    """Sizes of what each layer leaves: hidden rows, and deepstack features that later layers still take.

    Attributes:
        hidden: int64 [L].
        on_output: told row and tensor of each.
    """

    def __init__(self, layers: ModelLayers) -> None:
        super().__init__()
        self._layers = layers
        self.hidden = np.zeros(len(layers), dtype=np.int64)
        self.on_output: Callable[[int, Tensor], None] = lambda row, output: None
        self._features = np.zeros(len(layers.deepstack_layers), dtype=np.int64)
        for row, layer in enumerate(layers.layers):
            if layer.kind != "head":
                self._watch(layer.name, self.hidden, row)
        for number, path in enumerate(layers.deepstack_projectors):
            self._watch(path, self._features, number)

    def _watch(self, path: str, into: Counts, place: int) -> None:
        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            into[place] = first.numel() * first.element_size()
            if into is self.hidden:
                self.on_output(place, first)

        self._handles.append(self._layers.module(path).register_forward_hook(note))

    @property
    def sent(self) -> Counts:
        """int64 [L], hidden rows and features that a next stage would receive."""
        layers, sent = self._layers, self.hidden.copy()
        for row in range(len(layers) - 1):
            if row < layers.vision:
                features = self._features[: sum(index <= row for index in layers.deepstack_layers)]
            else:
                features = self._features[row - layers.vision :]
            sent[row] += features.sum()
        return sent
