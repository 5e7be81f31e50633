"""Recomputation must cover whole decoder layers where ranks exchange within attention."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from transformers import PreTrainedModel

from trimtab.errors import SettingsError


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
