"""Qwen3-VL, dense and MoE: full attention per frame; deepstack adds one merger per tapped layer."""

from __future__ import annotations

from trimtab.cost.architecture import VisionArchitecture
from trimtab.cost.mappings.fields import ConfigFields

MODEL_TYPES = ("qwen3_vl", "qwen3_vl_moe")


def vision_from_config(config: ConfigFields) -> VisionArchitecture:
    """Map the vision config.

    Raises:
        UnknownModelError: a field has the wrong kind.
    """
    vision = config.vision()
    width = vision.integer("hidden_size", 1152)
    merge = vision.integer("spatial_merge_size", 2)
    merged = width * merge**2
    deepstack = vision.integers("deepstack_visual_indexes", (8, 16, 24))
    merger = ((merged, merged), (merged, vision.integer("out_hidden_size", 3584)))
    return VisionArchitecture(
        width=width,
        depth=vision.integer("depth", 27),
        heads=vision.integer("num_heads", 16),
        mlp=vision.integer("intermediate_size", 4304),
        patch=vision.integer("patch_size", 16),
        temporal_patch=vision.integer("temporal_patch_size", 2),
        merge=merge,
        deepstack=deepstack,
        projector=merger * (1 + len(deepstack)),
        projector_patches=merge**2,
    )
