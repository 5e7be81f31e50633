"""Questions about scenes, each with one right answer of one word from a closed vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trimtab.demo.shapes import COLOURS, DIRECTIONS, NUMBERS, MovingScene, Scene

QuestionKind = Literal["colour", "count", "clip_colour", "direction", "where", "pick", "text"]

ORDINALS = ("first", "second")
THINGS = ("ball", "box", "cup", "door", "hat", "kite", "lamp", "shoe")


_ABOUT_ONE: dict[QuestionKind, str] = {
    "colour": "Which colour are the shapes?",
    "count": "How many shapes are there?",
    "clip_colour": "Which colour is moving?",
    "direction": "Which way does it move?",
}


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its one-word answer."""

    kind: QuestionKind
    text: str
    answer: str


def answers() -> tuple[str, ...]:
    """Every word that may be an answer."""
    return (*COLOURS, *NUMBERS[1:], *DIRECTIONS, *ORDINALS)


def about_picture(kind: QuestionKind, scene: Scene) -> Question:
    """A question about one picture: "colour" or "count"."""
    answer = {"colour": scene.colour, "count": NUMBERS[len(scene.shapes)]}[kind]
    return Question(kind, _ABOUT_ONE[kind], answer)


def about_clip(kind: QuestionKind, clip: MovingScene) -> Question:
    """A question about one clip: "clip_colour" or "direction"."""
    answer = {"clip_colour": clip.still.colour, "direction": clip.direction}[kind]
    return Question(kind, _ABOUT_ONE[kind], answer)


def about_pictures(kind: QuestionKind, colour: str, place: int) -> Question:
    """A question about two pictures of which the one at ``place`` (0 or 1) shows ``colour``: "where" or "pick"."""
    if kind == "where":
        return Question(kind, f"In which picture is {colour}?", ORDINALS[place])
    return Question(kind, f"Which colour is in the {ORDINALS[place]} picture?", colour)


def about_text(rng: np.random.Generator) -> Question:
    """A question answered by the sentences before it: mostly one, seldom many."""
    facts = min(int(rng.geometric(0.6)), len(THINGS))
    things = rng.permutation(len(THINGS))[:facts].tolist()
    names = tuple(COLOURS)
    colours = [names[index] for index in rng.integers(len(names), size=facts).tolist()]
    asked = int(rng.integers(facts))
    sentences = " ".join(f"The {THINGS[thing]} is {colour}." for thing, colour in zip(things, colours, strict=True))
    return Question("text", f"{sentences} Which colour is the {THINGS[things[asked]]}?", colours[asked])


def texts() -> list[str]:
    """Texts that hold every word of every question and answer: what the tokenizer learns from."""
    known = [f"The {thing} is {colour}. Which colour is the {thing}?" for thing in THINGS for colour in COLOURS]
    asked = [f"In which picture is {colour}?" for colour in COLOURS]
    asked += [f"Which colour is in the {ordinal} picture?" for ordinal in ORDINALS]
    return [*known, *asked, *_ABOUT_ONE.values(), *answers()]
