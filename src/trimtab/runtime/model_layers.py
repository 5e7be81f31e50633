"""Finds the layers of a Transformers vision-language model: what is timed, recomputed and dealt to pipeline stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from trimtab.errors import UnknownModelError
from trimtab.families.model_parts import ModelParts, model_parts_for
from trimtab.schema.stages import LayerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayer:
    """The smallest piece a pipeline stage can hold.

    Patches are embedded with the first vision layer, tokens with the first language layer.

    Attributes:
        name: path of its main module from the model.
        kind: "vision", "projector", "language" or "head".
        index: among the vision or language layers; 0 for projector and head.
    """

    name: str
    kind: LayerKind
    index: int = 0

    @property
    def can_recompute(self) -> bool:
        """Whether it is a whole transformer layer, which is what recomputes."""
        return self.kind in ("vision", "language")


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelLayers:
    """The layers of one model in the order they run: vision layers, projector, language layers, head.

    Attributes:
        model: the Transformers model, adapters or not.
        parts: paths of its parts.
        layers: [L].
    """

    model: PreTrainedModel
    parts: ModelParts
    layers: tuple[ModelLayer, ...]

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def names(self) -> tuple[str, ...]:
        """[L], unique."""
        return tuple(layer.name for layer in self.layers)

    @property
    def vision(self) -> int:
        """Number of vision layers."""
        return sum(layer.kind == "vision" for layer in self.layers)

    @property
    def language(self) -> int:
        """Number of language layers."""
        return sum(layer.kind == "language" for layer in self.layers)

    def module(self, path: str) -> nn.Module:
        """The module at a path."""
        return self.model.get_submodule(path)

    def owned_modules(self, layer: ModelLayer) -> Iterator[str]:
        """Paths of the modules whose weights go where the layer goes, its own first."""
        parts = self.parts
        yield layer.name
        if layer.kind == "vision" and layer.index == 0:
            yield parts.patch_embedding
            yield from (path for path in (parts.position_embedding,) if path)
        if layer.kind == "vision" and layer.index in self.deepstack_layers:
            yield self.deepstack_projectors[self.deepstack_layers.index(layer.index)]
        if layer.kind == "language" and layer.index == 0:
            yield parts.token_embedding
        if layer.kind == "head":
            yield parts.final_norm

    @property
    def deepstack_layers(self) -> tuple[int, ...]:
        """Vision layers whose outputs enter the first language layers too (Qwen3-VL), in ascending order."""
        return tuple(sorted(self._deepstack_indexes()))

    @property
    def deepstack_projectors(self) -> tuple[str, ...]:
        """Paths of their projectors, in the same order."""
        indexes = self._deepstack_indexes()
        return tuple(f"{self.parts.deepstack}.{indexes.index(layer)}" for layer in sorted(indexes))

    def _deepstack_indexes(self) -> list[int]:
        tower: Any = self.module(self.parts.tower)
        return [] if self.parts.deepstack is None else list(tower.deepstack_visual_indexes)


def base_model(model: nn.Module) -> PreTrainedModel:
    """The Transformers model inside a PEFT model or a ``BalancedVLM``, or the model itself.

    Raises:
        UnknownModelError: there is none.
    """
    found: Any = model
    for _ in range(3):  # BalancedVLM around PEFT around the model
        if isinstance(found, PreTrainedModel):
            return found
        found = found.get_base_model() if hasattr(found, "get_base_model") else getattr(found, "model", None)
    raise UnknownModelError(f"{type(model).__name__} holds no Transformers model; give a vision-language model")


def find_layers(model: nn.Module) -> ModelLayers:
    """The layers of a model of a family described in ``families/model_parts.py``.

    Raises:
        UnknownModelError: the model type is not described, or the model lacks a part; names it.
    """
    base = base_model(model)
    parts = model_parts_for(base.config.model_type)
    for path in parts.paths():
        _check_part(base, path)
    vision = len(base.get_submodule(parts.vision_layers))
    language = len(base.get_submodule(parts.language_layers))
    layers = (
        *(ModelLayer(name=f"{parts.vision_layers}.{i}", kind="vision", index=i) for i in range(vision)),
        ModelLayer(name=parts.projector, kind="projector"),
        *(ModelLayer(name=f"{parts.language_layers}.{i}", kind="language", index=i) for i in range(language)),
        ModelLayer(name=parts.head, kind="head"),
    )
    return ModelLayers(model=base, parts=parts, layers=layers)


def _check_part(model: PreTrainedModel, path: str) -> None:
    try:
        found = model.get_submodule(path)
    except AttributeError as error:
        raise UnknownModelError(
            f"the layers of {type(model).__name__} cannot be found: it has no {path}; use the model with its head "
            "(…ForConditionalGeneration) and a Transformers version that trimtab supports (>=5.19)"
        ) from error
    if path.endswith(("layers", "blocks", "encoder.layer")) and not len(found):
        raise UnknownModelError(f"{type(model).__name__}: {path} holds no layer; give a model with at least one")
