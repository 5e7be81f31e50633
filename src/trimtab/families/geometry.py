"""Builds a checkpoint's VisionGeometry from its configuration dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trimtab.errors import UnknownModelError
from trimtab.families.family import Family
from trimtab.families.registry import family_for
from trimtab.schema.geometry import VisionGeometry


def vision_geometry(
    config: Mapping[str, Any],
    preprocessor_config: Mapping[str, Any] | None = None,
    video_preprocessor_config: Mapping[str, Any] | None = None,
) -> VisionGeometry:
    """The geometry a checkpoint's processors would use.

    As in Transformers, the video settings fall back to ``preprocessor_config`` where a checkpoint has no file of their
    own. What no file names comes from the family's defaults.

    Args:
        config: ``config.json``.
        preprocessor_config: ``preprocessor_config.json``, or ``processor_config.json`` with both processors nested.
        video_preprocessor_config: ``video_preprocessor_config.json``.

    Raises:
        UnknownModelError: no family has this model type, or a processor contradicts the vision tower.
        SettingsError: a limit is not positive, or a minimum exceeds its maximum.
    """
    family = family_for(str(config.get("model_type")))
    defaults = family.defaults
    files = preprocessor_config or {}
    image = files.get("image_processor") or files
    video = files.get("video_processor") or video_preprocessor_config or image
    sizes = _tower_sizes(config, defaults)
    for processor in (image, video):
        _check_agrees(processor, sizes)
    return replace(defaults, **sizes, **_image_settings(image, defaults), **_video_settings(video, family))


def _tower_sizes(config: Mapping[str, Any], defaults: VisionGeometry) -> dict[str, Any]:
    tower = config.get("vision_config") or {}
    return {
        "patch_size": int(tower.get("patch_size", defaults.patch_size)),
        "merge_size": int(tower.get("spatial_merge_size", defaults.merge_size)),
        "temporal_patch_size": int(tower.get("temporal_patch_size", defaults.temporal_patch_size)),
    }


def _check_agrees(processor: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
    for name, size in sizes.items():
        if processor.get(name) not in (None, size):
            raise UnknownModelError(
                f"the processor's {name} is {processor[name]} but the vision tower's is {size}; "
                "use the processor files that belong to this checkpoint"
            )


def _image_settings(image: Mapping[str, Any], defaults: VisionGeometry) -> dict[str, Any]:
    low, high = _pixel_limits(image, defaults.image_min_pixels, defaults.image_max_pixels)
    return {
        "image_min_pixels": low,
        "image_max_pixels": high,
        "mean": tuple(image.get("image_mean") or defaults.mean),
        "std": tuple(image.get("image_std") or defaults.std),
    }


def _video_settings(video: Mapping[str, Any], family: Family) -> dict[str, Any]:
    defaults = family.defaults
    low, high = _pixel_limits(video, defaults.video_min_pixels, defaults.video_max_pixels)
    fixed = video.get("num_frames")
    cap = video.get("max_video_tokens") or family.video_token_cap
    return {
        "video_fps": float(video.get("fps") or defaults.video_fps),
        "video_min_frames": int(fixed or video.get("min_frames") or defaults.video_min_frames),
        "video_max_frames": int(fixed or video.get("max_frames") or defaults.video_max_frames),
        "video_min_pixels": low,
        "video_max_pixels": high,
        "video_token_cap": int(cap) if video.get("cap_pixels_per_frame") else None,
    }


def _pixel_limits(processor: Mapping[str, Any], low: int, high: int) -> tuple[int, int]:
    size = processor.get("size") or {}
    # the older names, where a file has them, win over the size
    given_low = processor.get("min_pixels") or size.get("shortest_edge")
    given_high = processor.get("max_pixels") or size.get("longest_edge")
    if given_low is not None and given_high is not None:
        return int(given_low), int(given_high)
    if given_high is not None:
        return min(low, int(given_high)), int(given_high)  # a default gives way to what a file says
    if given_low is not None:
        return int(given_low), max(high, int(given_low))
    return low, high
