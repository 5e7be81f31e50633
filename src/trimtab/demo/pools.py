"""The demo's media files, with the scenes they show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from trimtab.demo.decks import Deck
from trimtab.demo.images import write_picture
from trimtab.demo.settings import DatasetSettings
from trimtab.demo.shapes import COLOURS, DIRECTIONS, MovingScene, Scene, moving_scene, still_scene
from trimtab.demo.sizes import heavy_tailed
from trimtab.demo.videos import write_clip

T = TypeVar("T", Scene, MovingScene)

_STRETCH = (3 / 4) ** 0.5
"""Narrowest picture: a width of this share of its mean side gives an aspect of 3:4."""
_PNG_EVERY = 4


@dataclass(frozen=True, slots=True)
class MediaFile(Generic[T]):
    """One encoded file: its path relative to the dataset's folder, and the scene it shows."""

    path: str
    scene: T


def write_pictures(
    folder: Path,
    name: str,
    count: int,
    settings: DatasetSettings,
    rng: np.random.Generator,
    on_file: Callable[[], None],
) -> list[MediaFile[Scene]]:
    """Write ``count`` pictures into ``folder/media``; every fourth is a PNG, the others JPEG."""
    low, high = settings.picture_side_range
    sides = heavy_tailed(count, settings.picture_side, settings.picture_spread, (low, high), rng)
    colours, counts = Deck(tuple(COLOURS), rng), Deck((1, 2, 3, 4), rng)
    pictures = []
    for index, side in enumerate(sides.tolist()):
        stretch = _STRETCH ** rng.uniform(-1.0, 1.0)
        width, height = (int(np.clip(edge, low, high)) for edge in (side * stretch, side / stretch))
        path = f"media/{name}-{index:04d}.{'png' if index % _PNG_EVERY == 0 else 'jpg'}"
        scene = still_scene(rng, width, height, colour=colours.deal(), count=counts.deal())
        write_picture(folder / path, scene)
        pictures.append(MediaFile(path, scene))
        on_file()
    return pictures


def write_clips(
    folder: Path,
    name: str,
    count: int,
    settings: DatasetSettings,
    rng: np.random.Generator,
    on_file: Callable[[], None],
) -> list[MediaFile[MovingScene]]:
    """Write ``count`` clips into ``folder/media``."""
    durations = heavy_tailed(count, settings.clip_seconds, settings.clip_spread, settings.clip_seconds_range, rng)
    colours, directions = Deck(tuple(COLOURS), rng), Deck(DIRECTIONS, rng)
    clips = []
    for index, seconds in enumerate(durations.tolist()):
        side = settings.clip_sides[int(rng.integers(len(settings.clip_sides)))]
        frames = max(round(seconds * settings.clip_fps), 2)
        path = f"media/{name}-{index:04d}.mp4"
        clip = moving_scene(rng, side, frames, settings.clip_fps, colour=colours.deal(), direction=directions.deal())
        write_clip(folder / path, clip)
        clips.append(MediaFile(path, clip))
        on_file()
    return clips
