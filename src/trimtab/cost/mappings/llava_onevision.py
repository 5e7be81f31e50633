"""LLaVA-OneVision: SigLIP tiles; the projector runs on every patch, pooling of video comes after it."""

from __future__ import annotations

from trimtab.cost.architecture import VisionArchitecture
from trimtab.cost.mappings.fields import ConfigFields

MODEL_TYPES = ("llava_onevision",)


def vision_from_config(config: ConfigFields) -> VisionArchitecture:
    """Map the vision config; only the layers up to ``vision_feature_layer`` count.

    Transformers runs the layers after the tapped one too, but the published checkpoints have none.

    Raises:
        UnknownModelError: a field is missing or has the wrong kind.
    """
    vision = config.vision()
    language_width = config.section("text_config").integer("hidden_size")
    width = vision.integer("hidden_size", 1152)
    return VisionArchitecture(
        width=width,
        depth=vision.integer("num_hidden_layers", 26),
        heads=vision.integer("num_attention_heads", 16),
        mlp=vision.integer("intermediate_size", 4304),
        patch=vision.integer("patch_size", 14),
        merge=1,
        projector=((width, language_width), (language_width, language_width)),
        projector_patches=1,
    )
