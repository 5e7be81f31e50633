"""The demo's numbers: how much data, how large a model, how long it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab.demo.questions import QuestionKind


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """What the demo's dataset holds.

    Sizes are log-normal, cut to the ranges named; ``spread`` is the standard deviation of the size's logarithm.

    Attributes:
        pictures_per_sample, clips_per_sample: encoded files for each sample; several samples ask about one file.
        picture_side: median of the mean side, in pixels.
        picture_side_range: shortest and longest side.
        picture_spread: of the mean side.
        clip_seconds: median duration.
        clip_seconds_range: shortest and longest duration.
        clip_spread: of the duration.
        clip_sides: sides a clip may have, in pixels; all even, as h264 wants.
        clip_fps: frames a second.
        shares: how many samples ask each kind of question, relative to the other kinds.
    """

    pictures_per_sample: float = 0.2
    clips_per_sample: float = 0.07
    picture_side: float = 150.0
    picture_side_range: tuple[int, int] = (64, 1024)
    picture_spread: float = 1.2
    clip_seconds: float = 4.0
    clip_seconds_range: tuple[float, float] = (0.5, 40.0)
    clip_spread: float = 1.4
    clip_sides: tuple[int, ...] = (96, 112, 128, 160)
    clip_fps: int = 8
    shares: Mapping[QuestionKind, float] = field(
        default_factory=lambda: {
            "colour": 4.0,
            "count": 2.0,
            "clip_colour": 2.0,
            "direction": 1.0,
            "where": 1.0,
            "pick": 1.0,
            "text": 1.0,
        }
    )


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """A small Qwen2.5-VL and the limits of its processors.

    Attributes:
        hidden_size, intermediate_size, layers, heads, key_value_heads: of the language model.
        mrope_section: rotary frequencies that see time, height and width; the sum is half the head dimension. The first
            ones are the fastest, and the only ones that order text.
        vision_hidden_size, vision_intermediate_size, vision_layers, vision_heads: of the vision tower, whose last layer
            attends over a whole frame and the others within windows.
        window_size: side of a vision window, in pixels.
        initializer_range: standard deviation of random weights. The usual 0.02 suits wide models; a matrix of width 64
            keeps the scale of its input at 1 / sqrt(64).
        image_min_pixels, image_max_pixels: limits of one image.
        video_min_pixels, video_max_pixels: limits of one frame.
        video_fps: frames the model sees a second.
    """

    hidden_size: int = 64
    intermediate_size: int = 128
    layers: int = 2
    heads: int = 4
    key_value_heads: int = 2
    mrope_section: tuple[int, int, int] = (4, 2, 2)
    vision_hidden_size: int = 64
    vision_intermediate_size: int = 128
    vision_layers: int = 3
    vision_heads: int = 2
    window_size: int = 112
    initializer_range: float = 0.1
    image_min_pixels: int = 56 * 56
    image_max_pixels: int = 560 * 560
    video_min_pixels: int = 56 * 56
    video_max_pixels: int = 140 * 140
    video_fps: float = 2.0


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How the demo's model learns: AdamW, linear warm-up, then half a cosine.

    Attributes:
        steps: optimizer steps.
        samples_per_step: samples of one step, over all ranks.
        learning_rate: peak.
        warmup_steps: steps up to the peak.
        final_share: share of the peak left at the end.
        beta2: AdamW's.
        weight_decay: AdamW's.
        max_grad_norm: gradients are scaled down to this norm.
    """

    steps: int = 120
    samples_per_step: int = 12
    learning_rate: float = 6e-3
    warmup_steps: int = 8
    final_share: float = 0.05
    beta2: float = 0.98
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """The whole demo.

    Attributes:
        seed: of data, weights and sampling.
        train, held_out: samples.
        dataset, model, training: see there.
    """

    seed: int = 0
    train: int = 1440
    held_out: int = 200
    dataset: DatasetSettings = field(default_factory=DatasetSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
