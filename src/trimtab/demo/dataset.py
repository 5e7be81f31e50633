"""Writes the demo's dataset: encoded media files, and chat messages that ask about them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trimtab.demo.decks import Deck
from trimtab.demo.pools import MediaFile, write_clips, write_pictures
from trimtab.demo.questions import Question, QuestionKind, about_clip, about_picture, about_pictures, about_text
from trimtab.demo.settings import DatasetSettings
from trimtab.demo.shapes import MovingScene, Scene

Picture = MediaFile[Scene]
Clip = MediaFile[MovingScene]

_FEWEST_FILES = 8


@dataclass(frozen=True, slots=True)
class DemoDataset:
    """Where the dataset lies.

    Attributes:
        train, held_out: JSONL files; media paths in them are relative to their folder.
        files: encoded media files written.
    """

    train: Path
    held_out: Path
    files: int


@dataclass(frozen=True, slots=True)
class DemoSample:
    """One sample: a question, its answer, and the media it is about, as (kind, path) in order."""

    question: Question
    media: tuple[tuple[str, str], ...]


def write_demo(
    folder: Path,
    seed: int,
    *,
    train: int,
    held_out: int,
    settings: DatasetSettings | None = None,
    show_progress: bool = True,
) -> DemoDataset:
    """Write ``train.jsonl``, ``held_out.jsonl`` and ``media/``; equal arguments give equal files, byte for byte.

    Held-out samples ask about files of their own.

    Args:
        folder: made if missing.
        seed: of everything random.
        train: training samples.
        held_out: held-out samples.
        settings: sizes and question kinds.
        show_progress: show a bar on standard error.
    """
    settings = settings or DatasetSettings()
    (folder / "media").mkdir(parents=True, exist_ok=True)
    splits = {"train": train, "held_out": held_out}
    total = sum(sum(_file_counts(samples, settings)) for samples in splits.values())
    with _progress(total, show_progress) as on_file:
        for index, (name, samples) in enumerate(splits.items()):
            _write_split(folder, name, samples, settings, np.random.default_rng([seed, index]), on_file)
    return DemoDataset(folder / "train.jsonl", folder / "held_out.jsonl", total)


def record(sample_id: str, sample: DemoSample) -> dict[str, Any]:
    """A sample as chat messages with OpenAI-style content parts."""
    parts: list[dict[str, Any]] = [{"type": f"{kind}_url", f"{kind}_url": {"url": path}} for kind, path in sample.media]
    parts.append({"type": "text", "text": sample.question.text})
    return {
        "id": sample_id,
        "question_kind": sample.question.kind,
        "messages": [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": sample.question.answer},
        ],
    }


def _write_split(
    folder: Path,
    name: str,
    samples: int,
    settings: DatasetSettings,
    rng: np.random.Generator,
    on_file: Callable[[], None],
) -> None:
    pictures, clips = _file_counts(samples, settings)
    scenes = write_pictures(folder, name, pictures, settings, rng, on_file)
    moving = write_clips(folder, name, clips, settings, rng, on_file)
    with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as lines:
        asker = _Asker(scenes, moving, list(settings.shares), rng)
        for index, kind in enumerate(_question_kinds(samples, settings, rng)):
            lines.write(json.dumps(record(f"{name}-{index:05d}", asker.ask(kind))) + "\n")


def _file_counts(samples: int, settings: DatasetSettings) -> tuple[int, int]:
    """Pictures and clips of a split."""
    return (
        max(math.ceil(samples * settings.pictures_per_sample), _FEWEST_FILES),
        max(math.ceil(samples * settings.clips_per_sample), _FEWEST_FILES),
    )


def _question_kinds(samples: int, settings: DatasetSettings, rng: np.random.Generator) -> list[QuestionKind]:
    """The kind of each sample's question: exact shares, in random order."""
    kinds = list(settings.shares)
    bounds = np.cumsum(list(settings.shares.values()))
    places = (np.arange(samples) + 0.5) / samples * bounds[-1]
    return [kinds[index] for index in rng.permutation(np.searchsorted(bounds, places)).tolist()]


class _Asker:
    """Asks about a split's files, about each as often as about any other."""

    def __init__(
        self,
        pictures: Sequence[Picture],
        clips: Sequence[Clip],
        kinds: Sequence[QuestionKind],
        rng: np.random.Generator,
    ) -> None:
        self._pictures = tuple(pictures)
        self._rng = rng
        self._picture_decks = {kind: Deck(pictures, rng) for kind in kinds}
        self._clip_decks = {kind: Deck(clips, rng) for kind in kinds}

    def ask(self, kind: QuestionKind) -> DemoSample:
        """One sample of this kind of question."""
        if kind == "text":
            return DemoSample(about_text(self._rng), ())
        if kind in ("clip_colour", "direction"):
            clip = self._clip_decks[kind].deal()
            return DemoSample(about_clip(kind, clip.scene), (("video", clip.path),))
        picture = self._picture_decks[kind].deal()
        if kind in ("where", "pick"):
            return self._ask_about_two(kind, picture)
        return DemoSample(about_picture(kind, picture.scene), (("image", picture.path),))

    def _ask_about_two(self, kind: QuestionKind, asked: Picture) -> DemoSample:
        """Put a picture of another colour before or after the one asked about."""
        others = [picture for picture in self._pictures if picture.scene.colour != asked.scene.colour]
        place = int(self._rng.integers(2))
        pair = [others[int(self._rng.integers(len(others)))]]
        pair.insert(place, asked)
        question = about_pictures(kind, asked.scene.colour, place)
        return DemoSample(question, tuple(("image", picture.path) for picture in pair))


@contextmanager
def _progress(total: int, show: bool) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("drawing images and videos"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not show) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)
