"""InternVL: tiles of 448 pixels with a class token, pixel shuffle by 2, a two-matrix projector.

Both the Transformers form (``internvl``) and the checkpoints' own form (``internvl_chat``) are read.
"""

from __future__ import annotations

from trimtab.cost.architecture import VisionArchitecture
from trimtab.cost.mappings.fields import ConfigFields

MODEL_TYPES = ("internvl", "internvl_chat")


def vision_from_config(config: ConfigFields) -> VisionArchitecture:
    """Map the vision config.

    Raises:
        UnknownModelError: a field is missing or has the wrong kind.
    """
    vision = config.vision()
    language_width = config.section("text_config", "llm_config").integer("hidden_size")
    width = vision.integer("hidden_size", 1024)
    merge = round(1 / float(config.values.get("downsample_ratio", 0.5)))
    return VisionArchitecture(
        width=width,
        depth=vision.integer("num_hidden_layers", 24),
        heads=vision.integer("num_attention_heads", 16),
        mlp=vision.integer("intermediate_size", 4096),
        patch=vision.integer("patch_size", 14),
        merge=merge,
        extra_tokens=1,
        projector=((width * merge**2, language_width), (language_width, language_width)),
        projector_patches=merge**2,
    )
