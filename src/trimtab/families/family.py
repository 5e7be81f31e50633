"""What distinguishes one model family from another, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trimtab.schema.geometry import VisionGeometry

BatchRows = Literal["tokens", "patches", "tiles", "visuals", "samples"]
VideoPlaceholder = Callable[[Sequence[float], int], list[str | int]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model family.

    Attributes:
        name: its name in trimtab.
        model_types: values of ``model_type`` in a checkpoint's ``config.json``.
        image_token, video_token: the placeholder repeated once for each language-model token of a visual.
        vision_start_token, vision_end_token: what surrounds a visual's placeholders.
        batch_rows: for every key of a model input, what its rows belong to.
        defaults: geometry where a checkpoint's files are silent.
        video_token_cap: the cap where a checkpoint turns ``cap_pixels_per_frame`` on and names no ``max_video_tokens``.
        video_placeholder: ``(seconds of each temporal patch, tokens of one temporal patch)`` -> what replaces the video
            token in the text: strings are text, integers are that many video tokens.
        chat_template: Jinja template for tokenizers that bring none.
    """

    name: str
    model_types: tuple[str, ...]
    image_token: str
    video_token: str
    vision_start_token: str
    vision_end_token: str
    batch_rows: Mapping[str, BatchRows]
    defaults: VisionGeometry
    video_token_cap: int
    video_placeholder: VideoPlaceholder
    chat_template: str
