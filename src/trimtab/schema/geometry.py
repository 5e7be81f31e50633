"""How a model cuts images and videos into patches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from trimtab.errors import MetadataError, SettingsError

FrameRule = Literal["stride", "linspace"]
PixelRule = Literal["frame", "clip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionGeometry:
    """Everything that decides an image's or a video's patch grid and pixel values.

    Attributes:
        family: name of the model family.
        patch_size: pixels along one side of a patch.
        merge_size: patches merged into one language-model token along each spatial axis.
        temporal_patch_size: video frames in one temporal patch.
        image_min_pixels, image_max_pixels: limits on an image after resizing.
        frame_rule: "stride" takes every (total / n)-th frame from the first and an n divisible by the temporal patch
            (Qwen2-VL, Qwen2.5-VL); "linspace" spreads n frames from the first to the last (Qwen3-VL).
        pixel_rule: whether the video pixel limits hold for one "frame" or for the whole "clip".
        video_fps: frames taken a second.
        video_min_frames, video_max_frames: limits on the frames taken.
        video_min_pixels, video_max_pixels: limits after resizing; see ``pixel_rule``.
        video_token_cap: the processors' ``max_video_tokens`` where ``cap_pixels_per_frame`` is on, else None.
        mean, std: per channel (RGB), of pixels scaled to [0, 1].

    Raises:
        SettingsError: a size or limit is not positive, or a minimum exceeds its maximum.
    """

    family: str
    patch_size: int
    merge_size: int
    temporal_patch_size: int
    image_min_pixels: int
    image_max_pixels: int
    frame_rule: FrameRule
    pixel_rule: PixelRule
    video_fps: float
    video_min_frames: int
    video_max_frames: int
    video_min_pixels: int
    video_max_pixels: int
    video_token_cap: int | None
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        for name in ("patch_size", "merge_size", "temporal_patch_size", "video_fps"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name}={getattr(self, name)} must be positive")
        for limit in ("image_{}_pixels", "video_{}_frames", "video_{}_pixels"):
            low, high = (getattr(self, limit.format(end)) for end in ("min", "max"))
            if not 0 < low <= high:
                raise SettingsError(
                    f"{limit.format('min')}={low} and {limit.format('max')}={high}: both must be positive and the "
                    "minimum at most the maximum; change either limit"
                )

    @property
    def factor(self) -> int:
        """Pixels along one side of a merged patch; resized heights and widths are multiples of it."""
        return self.patch_size * self.merge_size

    @property
    def patch_values(self) -> int:
        """Numbers in one patch: RGB * temporal patch * patch * patch."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    def to_metadata(self) -> dict[str, str]:
        """Key-value metadata of a table made with this geometry; values are JSON."""
        return {name: json.dumps(value) for name, value in asdict(self).items()}

    @staticmethod
    def from_metadata(metadata: Mapping[str, str]) -> VisionGeometry:
        """The inverse of ``to_metadata``.

        Raises:
            MetadataError: a key is missing or not JSON.
        """
        values: dict[str, Any] = {}
        for field in fields(VisionGeometry):
            if field.name not in metadata:
                raise MetadataError(f"the table's metadata has no {field.name!r}; scan the dataset again")
            try:
                value = json.loads(metadata[field.name])
            except ValueError as error:
                raise MetadataError(
                    f"the table's metadata {field.name}={metadata[field.name]!r} is not JSON; scan the dataset again"
                ) from error
            values[field.name] = tuple(value) if isinstance(value, list) else value
        return VisionGeometry(**values)

    def differences(self, other: VisionGeometry) -> dict[str, tuple[Any, Any]]:
        """Fields in which the two differ, with this one's value and the other's."""
        mine, others = asdict(self), asdict(other)
        return {name: (mine[name], others[name]) for name in mine if mine[name] != others[name]}
