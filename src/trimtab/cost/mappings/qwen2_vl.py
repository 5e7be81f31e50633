"""Qwen2-VL: every frame attends within itself; merger of two matrices per 2x2 patches."""

from __future__ import annotations

from trimtab.cost.architecture import VisionArchitecture
from trimtab.cost.mappings.fields import ConfigFields

MODEL_TYPES = ("qwen2_vl",)


def vision_from_config(config: ConfigFields) -> VisionArchitecture:
    """Map the vision config; ``hidden_size`` names the language model's width here (its own is ``embed_dim``).

    Raises:
        UnknownModelError: a field has the wrong kind.
    """
    vision = config.vision()
    width = vision.integer("embed_dim", 1280)
    merge = vision.integer("spatial_merge_size", 2)
    merged = width * merge**2
    return VisionArchitecture(
        width=width,
        depth=vision.integer("depth", 32),
        heads=vision.integer("num_heads", 16),
        mlp=width * vision.integer("mlp_ratio", 4),
        patch=vision.integer("patch_size", 14),
        temporal_patch=vision.integer("temporal_patch_size", 2),
        merge=merge,
        projector=((merged, merged), (merged, vision.integer("hidden_size", 3584))),
        projector_patches=merge**2,
    )
