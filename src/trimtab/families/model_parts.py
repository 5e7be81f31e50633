"""Where the layers of each model lie, as attribute paths in Transformers' module trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from trimtab.errors import UnknownModelError


@dataclass(frozen=True, kw_only=True)
class ModelParts:
    """Paths from a model with a head (``…ForConditionalGeneration``) to its parts.

    Attributes:
        tower: the vision tower, whose call encodes visuals.
        vision_layers: its list of layers.
        patch_embedding, position_embedding: what turns pixels into the first layer's input; the second may be absent.
        projector: what turns the last layer's output into rows of the language model.
        vision_width: key of the vision configuration that holds the width of its layers.
        deepstack: list of further projectors, fed by layers within the tower (Qwen3-VL), or None.
        language: the language model.
        language_layers: its list of layers.
        token_embedding, final_norm, head: before its first and after its last layer.
    """

    tower: str
    vision_layers: str
    patch_embedding: str
    position_embedding: str | None = None
    projector: str
    vision_width: str = "hidden_size"
    deepstack: str | None = None
    language: str = "model.language_model"
    language_layers: str = "model.language_model.layers"
    token_embedding: str = "model.language_model.embed_tokens"
    final_norm: str = "model.language_model.norm"
    head: str = "lm_head"

    def paths(self) -> Iterator[str]:
        """All paths a model of this kind has."""
        for name, value in vars(self).items():
            if name != "vision_width" and value is not None:
                yield value


_QWEN2_5 = ModelParts(
    tower="model.visual",
    vision_layers="model.visual.blocks",
    patch_embedding="model.visual.patch_embed",
    projector="model.visual.merger",
)
_QWEN2 = replace(_QWEN2_5, vision_width="embed_dim")
_QWEN3 = replace(_QWEN2_5, position_embedding="model.visual.pos_embed", deepstack="model.visual.deepstack_merger_list")
_INTERNVL = ModelParts(
    tower="model.vision_tower",
    vision_layers="model.vision_tower.encoder.layer",
    patch_embedding="model.vision_tower.embeddings",
    projector="model.multi_modal_projector",
)
_LLAVA_ONEVISION = ModelParts(
    tower="model.vision_tower",
    vision_layers="model.vision_tower.encoder.layers",
    patch_embedding="model.vision_tower.embeddings",
    projector="model.multi_modal_projector",
)

MODEL_PARTS: Mapping[str, ModelParts] = MappingProxyType(
    {
        "qwen2_vl": _QWEN2,
        "qwen2_5_vl": _QWEN2_5,
        "qwen3_vl": _QWEN3,
        "qwen3_vl_moe": _QWEN3,
        "internvl": _INTERNVL,
        "llava_onevision": _LLAVA_ONEVISION,
    }
)
"""By ``model_type`` of the model's configuration."""


def model_parts_for(model_type: str) -> ModelParts:
    """The parts of a ``model_type``.

    Raises:
        UnknownModelError: it is not described; the message lists those that are.
    """
    if model_type not in MODEL_PARTS:
        raise UnknownModelError(
            f"the layers of model type {model_type!r} cannot be found; known: {', '.join(MODEL_PARTS)}"
        )
    return MODEL_PARTS[model_type]
