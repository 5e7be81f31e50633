"""Which layers of a model recompute in the backward pass: set by name, read and checked.

A transformer layer recomputes as a whole or not at all: a smaller region that holds its attention would repeat
exchanges between ranks in an order of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from trimtab.errors import SettingsError, UnknownModelError
from trimtab.runtime.model_layers import find_layers


def recompute_layers(model: nn.Module, names: Collection[str]) -> None:
    """Recompute these layers in the backward of training mode, and no others.

    Args:
        model: a Transformers VLM, or one in PEFT, BalancedVLM or FSDP2.
        names: of ``find_layers(model)``. Projector and head have nothing to recompute and may be named.

    Raises:
        UnknownModelError: the model's layers cannot be found, or a layer named does not recompute.
        SettingsError: a name is no layer's.
    """
    layers = find_layers(model)
    unknown = sorted(set(names) - set(layers.names))
    if unknown:
        raise SettingsError(
            f"{unknown[0]!r} is no layer of the model; layers are {layers.names[0]} … {layers.names[-1]}"
        )
    for layer in layers.layers:
        module: Any = layers.module(layer.name)
        if not layer.can_recompute or not (layer.name in names or getattr(module, "gradient_checkpointing", False)):
            continue
        if not hasattr(module, "gradient_checkpointing"):
            raise UnknownModelError(
                f"layer {layer.name} ({type(module).__name__}) does not recompute; use a Transformers layer "
                "(GradientCheckpointingLayer)"
            )
        # model.gradient_checkpointing_enable would also make embeddings require gradients
        module._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        module.gradient_checkpointing = layer.name in names


def recomputing_layers(model: nn.Module) -> tuple[str, ...]:
    """Names of the layers that recompute now.

    Raises:
        UnknownModelError: the model's layers cannot be found.
    """
    layers = find_layers(model)
    return tuple(
        layer.name
        for layer in layers.layers
        if layer.can_recompute and getattr(layers.module(layer.name), "gradient_checkpointing", False)
    )


def check_recomputation(model: PreTrainedModel) -> None:
    """Check that no recomputed region is smaller than a decoder layer but holds its attention.

    A region's recomputation starts when backward first needs one of its tensors. In attention alone that is a moment
    which differs with the sequences a rank holds, so ranks would issue the repeated exchanges in different orders.

    Raises:
        SettingsError: names the module.
    """
    core: Any = getattr(model.model, "language_model", model.model)
    for number, layer in enumerate(core.layers):
        for name, module in layer.named_modules():
            if name and _recomputes(module) and _attends(name, module):
                raise SettingsError(
                    f"layer {number}: {name} is recomputed apart from its layer, but sharded sequences exchange in "
                    "it; recompute whole decoder layers (gradient_checkpointing_enable)"
                )


def _recomputes(module: nn.Module) -> bool:
    return isinstance(module, CheckpointWrapper) or bool(getattr(module, "gradient_checkpointing", False))


def _attends(name: str, module: nn.Module) -> bool:
    return "attn" in name or any("attn" in inner for inner, _ in module.named_modules())
