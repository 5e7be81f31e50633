"""Measures what each layer of a model takes on this machine: time, bytes kept, bytes sent if a stage ended there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from trimtab.errors import SettingsError
from trimtab.runtime.layer_bytes import LayerBytes, layer_bytes
from trimtab.runtime.layer_regions import LayerRegions
from trimtab.runtime.memory_meter import local_tensor
from trimtab.runtime.model_layers import ModelLayers, find_layers
from trimtab.runtime.recompute import recompute_layers, recomputing_layers
from trimtab.schema.setting_checks import check_least
from trimtab.schema.stages import LayerProfile, LayerSpread

Batch = TypeVar("Batch")
LossOf = Callable[[Any, Batch], Tensor]

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLink:
    """What joins the ranks of a pipeline.

    Attributes:
        bytes_per_second: of one rank to the next; infinite: transfers take no time.
        latency_ns: of a transfer without data.
    """

    bytes_per_second: float = float("inf")
    latency_ns: int = 0

    def nanoseconds(self, nbytes: Counts) -> Counts:
        """Time of transfers of so many bytes."""
        sent = np.ceil(nbytes / self.bytes_per_second * 1e9).astype(np.int64)
        return np.where(nbytes > 0, sent + self.latency_ns, 0)


def profile_layers(
    model: nn.Module,
    batches: Sequence[Batch],
    loss_of: LossOf[Batch],
    *,
    repeats: int = 3,
    optimizer_bytes: float = 8.0,
    link: StageLink | None = None,
) -> LayerProfile:
    """Run real micro-batches forward and backward and attribute time and memory to layers.

    Times are the least of ``repeats`` runs of each micro-batch, averaged over micro-batches (``spread`` has them one by
    one): processor time of this thread while torch computes on one thread of a CPU, else wall time. Recomputing a layer
    is taken to cost its forward again. Bytes are of the micro-batch that takes most, layer by layer.

    Args:
        model: a Transformers VLM, or one in PEFT, BalancedVLM or FSDP2, in training mode. Its gradients are dropped.
        batches: micro-batches as training will meet them.
        loss_of: ``(model, batch)`` -> scalar loss. On a sharded model a collective.
        repeats: timed runs of each micro-batch.
        optimizer_bytes: of optimizer state, for each trained parameter (AdamW in float32: 8).
        link: between stages; None: transfers take no time.

    Raises:
        UnknownModelError: the model's layers cannot be found.
        SettingsError: there are no batches, the model is in evaluation mode or all frozen, or the loss is no scalar.
    """
    layers, batches = find_layers(model), list(batches)
    check_least("optimizer_bytes", optimizer_bytes, 0)
    if not batches or repeats < 1:
        raise SettingsError(f"{len(batches)} micro-batches and repeats={repeats}: give at least one of each")
    if not layers.model.training:
        raise SettingsError("the model is in evaluation mode, in which nothing recomputes; call model.train() first")
    before = recomputing_layers(model)
    try:
        _run(model, batches[0], loss_of)  # gradients and lazily made states exist from now on
        recompute_layers(model, ())
        kept = [layer_bytes(model, layers, batch, loss_of) for batch in batches]
        times = [_least_times(model, layers, batch, loss_of, repeats) for batch in batches]
        recompute_layers(model, layers.names)
        recomputed = [layer_bytes(model, layers, batch, loss_of) for batch in batches]
    finally:
        recompute_layers(model, before)
        model.zero_grad(set_to_none=True)
    return _profile(layers, times, _largest(kept), _largest(recomputed), optimizer_bytes, link or StageLink())


def largest_over_ranks(profile: LayerProfile, group: dist.ProcessGroup) -> LayerProfile:
    """The profile with each figure the largest of any rank's, so that all plan alike; a collective of ``group``."""
    names = [field.name for field in fields(profile) if isinstance(getattr(profile, field.name), np.ndarray)]
    device = torch.device("cpu") if dist.get_backend(group) == "gloo" else torch.device("cuda")
    figures = torch.from_numpy(np.stack([getattr(profile, name) for name in names])).to(device)
    dist.all_reduce(figures, op=dist.ReduceOp.MAX, group=group)
    return replace(profile, **dict(zip(names, figures.cpu().numpy(), strict=True)), spread=None)


@dataclass(frozen=True, eq=False)
class _Times:
    """Of one micro-batch: int64 [L] each; ``within`` is a transformer layer's own forward."""

    forward_ns: Counts
    backward_ns: Counts
    within_ns: Counts


class _Stopwatch:
    """Adds up time by layer and direction."""

    def __init__(self, layers: ModelLayers) -> None:
        self._device = layers.model.device
        on_one_thread = self._device.type == "cpu" and torch.get_num_threads() == 1
        self._clock = time.thread_time_ns if on_one_thread else time.perf_counter_ns
        self.total = np.zeros((2, len(layers)), dtype=np.int64)
        self.within = np.zeros(len(layers), dtype=np.int64)
        self._at: tuple[int, int] | None = None
        self._since = self._entered = 0

    def now(self) -> int:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._clock()

    def switch(self, row: int, backward: bool) -> None:
        self.stop()
        self._at, self._since = (int(backward), row), self.now()

    def stop(self) -> None:
        if self._at is not None:
            self.total[self._at] += self.now() - self._since
        self._at = None

    def layer(self, row: int, begins: bool) -> None:
        if begins:
            self._entered = self.now()
        else:
            self.within[row] += self.now() - self._entered


def _least_times(model: nn.Module, layers: ModelLayers, batch: Batch, loss_of: LossOf[Batch], repeats: int) -> _Times:
    runs = []
    for _ in range(repeats):
        watch = _Stopwatch(layers)
        with LayerRegions(layers, watch.switch, watch.layer) as regions:
            regions.begin_forward()
            loss = loss_of(model, batch)
            regions.begin_backward()
            loss.backward()
            watch.stop()
        runs.append(np.concatenate([watch.total, watch.within[None]]))
    forward, backward, within = np.min(runs, axis=0)
    return _Times(forward, backward, within)


def _run(model: nn.Module, batch: Batch, loss_of: LossOf[Batch]) -> None:
    loss = loss_of(model, batch)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise SettingsError(f"loss_of returned {found}; it must return the scalar loss of a micro-batch")
    if not loss.requires_grad:
        raise SettingsError("the loss needs no gradient: no weight of the model is trained; unfreeze some")
    loss.backward()


def _largest(found: Sequence[LayerBytes]) -> LayerBytes:
    return LayerBytes(
        **{field.name: np.max([getattr(each, field.name) for each in found], axis=0) for field in fields(LayerBytes)}
    )


def _profile(
    layers: ModelLayers,
    times: Sequence[_Times],
    kept: LayerBytes,
    recomputed: LayerBytes,
    optimizer_bytes: float,
    link: StageLink,
) -> LayerProfile:
    forward = np.stack([each.forward_ns for each in times])
    backward = np.stack([each.backward_ns for each in times])
    within = np.mean([each.within_ns for each in times], axis=0).astype(np.int64)
    parameters, state = _weights(layers, optimizer_bytes)
    can = np.array([layer.can_recompute for layer in layers.layers])
    return LayerProfile(
        names=layers.names,
        kinds=tuple(layer.kind for layer in layers.layers),
        forward_ns=np.maximum(forward.mean(axis=0).astype(np.int64), 1),
        backward_ns=backward.mean(axis=0).astype(np.int64),
        recompute_ns=np.where(can, within, 0),
        activation_bytes=kept.kept,
        recomputed_bytes=np.where(can, np.minimum(recomputed.kept, kept.kept), kept.kept),
        workspace_bytes=kept.workspace,
        parameters=parameters,
        state_bytes=state,
        boundary_bytes=kept.boundary,
        boundary_ns=link.nanoseconds(kept.boundary),
        spread=LayerSpread(forward_ns=forward, backward_ns=backward),
    )


def _weights(layers: ModelLayers, optimizer_bytes: float) -> tuple[Counts, Counts]:
    """Parameters of each layer, and bytes of weights, gradients and optimizer state that lie on this rank."""
    parameters, state = (np.zeros(len(layers), dtype=np.int64) for _ in range(2))
    seen: set[int] = set()
    for row, layer in enumerate(layers.layers):
        for path in layers.owned_modules(layer):
            for weight in layers.module(path).parameters():
                if id(weight) in seen:
                    continue
                seen.add(id(weight))
                held = local_tensor(weight.detach())
                parameters[row] += weight.numel()
                state[row] += held.nbytes
                if weight.requires_grad:
                    state[row] += held.nbytes + int(held.numel() * optimizer_bytes)
    return parameters, state
