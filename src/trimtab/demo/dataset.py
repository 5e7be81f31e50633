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

from trimtab.demo.pools import MediaFile, write_clips, write_pictures
from trimtab.demo.questions import Question, QuestionKind, about_clip, about_picture, about_pictures, about_text
from trimtab.demo.settings import DatasetSettings
from trimtab.demo.shapes import MovingScene, Scene

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
        for index, kind in enumerate(_question_kinds(samples, settings, rng)):
            sample = _ask(kind, scenes, moving, rng)
            lines.write(json.dumps(record(f"{name}-{index:05d}", sample)) + "\n")


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


def _ask(
    kind: QuestionKind,
    pictures: Sequence[MediaFile[Scene]],
    clips: Sequence[MediaFile[MovingScene]],
    rng: np.random.Generator,
) -> DemoSample:
    if kind == "text":
        return DemoSample(about_text(rng), ())
    if kind in ("where", "pick"):
        pair = _unlike_pair(pictures, rng)
        question = about_pictures(kind, [picture.scene for picture in pair], rng)
        return DemoSample(question, tuple(("image", picture.path) for picture in pair))
    if kind in ("clip_colour", "direction"):
        clip = clips[int(rng.integers(len(clips)))]
        return DemoSample(about_clip(kind, clip.scene), (("video", clip.path),))
    picture = pictures[int(rng.integers(len(pictures)))]
    return DemoSample(about_picture(kind, picture.scene), (("image", picture.path),))


def _unlike_pair(pictures: Sequence[MediaFile[Scene]], rng: np.random.Generator) -> list[MediaFile[Scene]]:
    """Two pictures of different colours; a pool has at least two colours."""
    first = pictures[int(rng.integers(len(pictures)))]
    others = [picture for picture in pictures if picture.scene.colour != first.scene.colour]
    return [first, others[int(rng.integers(len(others)))]]


@contextmanager
def _progress(total: int, show: bool) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("drawing images and videos"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not show) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)
