"""Questions about scenes, each with one right answer of one word from a closed vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trimtab.demo.shapes import COLOURS, DIRECTIONS, KINDS, NUMBERS, MovingScene, Scene

QuestionKind = Literal["colour", "count", "shape", "clip_colour", "direction", "where", "pick", "text"]

ORDINALS = ("first", "second")
THINGS = ("ball", "box", "cup", "door", "hat", "kite", "lamp", "shoe")


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its one-word answer."""

    kind: QuestionKind
    text: str
    answer: str


def answers() -> tuple[str, ...]:
    """Every word that may be an answer."""
    return (*COLOURS, *NUMBERS[1:], *KINDS, *DIRECTIONS, *ORDINALS)


def about_picture(kind: QuestionKind, scene: Scene) -> Question:
    """A question about one picture: "colour", "count" or "shape"."""
    shape = scene.shapes[0]
    if kind == "colour":
        return Question(kind, "Which colour?", shape.colour)
    if kind == "count":
        return Question(kind, "How many?", NUMBERS[len(scene.shapes)])
    return Question("shape", "Which shape?", shape.kind)


def about_clip(kind: QuestionKind, clip: MovingScene) -> Question:
    """A question about one clip: "clip_colour" or "direction"."""
    if kind == "clip_colour":
        return Question(kind, "Which colour moves?", clip.still.shapes[0].colour)
    return Question("direction", "Which way does it move?", clip.direction)


def about_pictures(kind: QuestionKind, scenes: Sequence[Scene], rng: np.random.Generator) -> Question:
    """A question about two pictures of different colours: "where" or "pick"."""
    index = int(rng.integers(2))
    colour = scenes[index].shapes[0].colour
    if kind == "where":
        return Question(kind, f"In which picture is {colour}?", ORDINALS[index])
    return Question("pick", f"Which colour is in the {ORDINALS[index]} picture?", colour)


def about_text(rng: np.random.Generator, facts: int) -> Question:
    """A question answered by the ``facts`` sentences before it."""
    things = rng.choice(len(THINGS), size=facts)
    colours = rng.choice(len(COLOURS), size=facts)
    known = dict(zip(things.tolist(), colours.tolist(), strict=True))
    names = tuple(COLOURS)
    sentences = " ".join(f"The {THINGS[thing]} is {names[colour]}." for thing, colour in known.items())
    asked = int(rng.choice(list(known)))
    return Question("text", f"{sentences} Which colour is the {THINGS[asked]}?", names[known[asked]])
