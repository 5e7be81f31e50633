"""Qwen2.5-VL (MiMo-VL loads as it): windowed attention except in a few layers, gated feed-forward."""

from __future__ import annotations

from trimtab.cost.architecture import VisionArchitecture
from trimtab.cost.mappings.fields import ConfigFields

MODEL_TYPES = ("qwen2_5_vl",)


def vision_from_config(config: ConfigFields) -> VisionArchitecture:
    """Map the vision config; Hub files always state ``hidden_size`` (the class default 3584 fits no model).

    Raises:
        UnknownModelError: a field is missing or has the wrong kind.
    """
    vision = config.vision()
    width = vision.integer("hidden_size")
    merge = vision.integer("spatial_merge_size", 2)
    patch = vision.integer("patch_size", 14)
    merged = width * merge**2
    return VisionArchitecture(
        width=width,
        depth=vision.integer("depth", 32),
        heads=vision.integer("num_heads", 16),
        mlp=vision.integer("intermediate_size", 3420),
        gated=True,
        patch=patch,
        temporal_patch=vision.integer("temporal_patch_size", 2),
        merge=merge,
        window=vision.integer("window_size", 112) // patch,
        full_layers=vision.integers("fullatt_block_indexes", (7, 15, 23, 31)),
        projector=((merged, merged), (merged, vision.integer("out_hidden_size", 3584))),
        projector_patches=merge**2,
    )
