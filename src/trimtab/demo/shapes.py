"""Scenes of coloured shapes on a grey ground, and how they are drawn.

A scene is the truth a question is asked about: answers come from its fields, never from the pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

ShapeKind = Literal["circle", "square", "triangle"]
Direction = Literal["left", "right", "up", "down"]

KINDS: tuple[ShapeKind, ...] = ("circle", "square", "triangle")
DIRECTIONS: tuple[Direction, ...] = ("left", "right", "up", "down")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (225, 30, 35),
    "green": (25, 175, 50),
    "blue": (35, 60, 225),
    "yellow": (240, 225, 35),
    "purple": (165, 35, 190),
    "cyan": (40, 205, 225),
}
NUMBERS: tuple[str, ...] = ("zero", "one", "two", "three", "four")
"""Words of the counts a question may have for an answer, by count."""

_STEP: dict[Direction, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape: centre as a fraction of width and height, radius as a fraction of the shorter side."""

    kind: ShapeKind
    colour: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True, slots=True)
class Scene:
    """A still: its size in pixels, its grey level (0-255) and its shapes, which do not overlap."""

    width: int
    height: int
    ground: int
    shapes: tuple[Shape, ...]

    @property
    def colour(self) -> str:
        """The colour of its shapes: scenes have one."""
        return self.shapes[0].colour

    def draw(self) -> Image.Image:
        """The scene as an RGB image."""
        image = Image.new("RGB", (self.width, self.height), (self.ground,) * 3)
        canvas = ImageDraw.Draw(image)
        for shape in self.shapes:
            _draw_shape(canvas, shape, self.width, self.height)
        return image


@dataclass(frozen=True, slots=True)
class MovingScene:
    """One shape that crosses the picture once, at even speed, over the whole clip.

    Attributes:
        still: the scene half-way.
        direction: where its shape moves to.
        travel: distance covered, as a fraction of the width or height.
        frames: frames of the clip.
        fps: frames a second.
    """

    still: Scene
    direction: Direction
    travel: float
    frames: int
    fps: int

    @property
    def seconds(self) -> float:
        """Duration of the clip."""
        return self.frames / self.fps

    def at(self, frame: int) -> Scene:
        """The scene of one frame."""
        done = frame / max(self.frames - 1, 1) - 0.5
        dx, dy = _STEP[self.direction]
        shape = self.still.shapes[0]
        moved = replace(shape, x=shape.x + dx * done * self.travel, y=shape.y + dy * done * self.travel)
        return replace(self.still, shapes=(moved,))


def still_scene(rng: np.random.Generator, width: int, height: int, *, colour: str, count: int) -> Scene:
    """``count`` equal shapes (1-4), each in its own quarter of the picture; kind, places and ground are random."""
    kind = KINDS[int(rng.integers(len(KINDS)))]
    shapes = tuple(
        Shape(
            kind=kind,
            colour=colour,
            x=0.27 + 0.46 * (quarter % 2) + rng.uniform(-0.03, 0.03),
            y=0.27 + 0.46 * (quarter // 2) + rng.uniform(-0.03, 0.03),
            radius=0.2,
        )
        for quarter in rng.permutation(4)[:count].tolist()
    )
    return Scene(width, height, _random_ground(rng), shapes)


def moving_scene(
    rng: np.random.Generator, side: int, frames: int, fps: int, *, colour: str, direction: Direction
) -> MovingScene:
    """One shape that crosses half of a square picture; kind, size, path and ground are random."""
    shape = Shape(
        kind=KINDS[int(rng.integers(len(KINDS)))],
        colour=colour,
        x=rng.uniform(0.45, 0.55),
        y=rng.uniform(0.45, 0.55),
        radius=rng.uniform(0.22, 0.3),
    )
    return MovingScene(Scene(side, side, _random_ground(rng), (shape,)), direction, 0.5, frames, fps)


def _random_ground(rng: np.random.Generator) -> int:
    return int(rng.integers(100, 150))


def _draw_shape(canvas: ImageDraw.ImageDraw, shape: Shape, width: int, height: int) -> None:
    x, y, r = shape.x * width, shape.y * height, shape.radius * min(width, height)
    fill = COLOURS[shape.colour]
    if shape.kind == "circle":
        canvas.ellipse((x - r, y - r, x + r, y + r), fill=fill)
    elif shape.kind == "square":
        side = 0.88 * r
        canvas.rectangle((x - side, y - side, x + side, y + side), fill=fill)
    else:
        canvas.polygon(((x, y - r), (x + r, y + 0.8 * r), (x - r, y + 0.8 * r)), fill=fill)
