"""The files of a run: resolved settings, one JSON line a step, results."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from trimtab.errors import TrainingError
from trimtab.report.run_records import read_steps
from trimtab.schema.reports import StepReport
from trimtab.schema.skipped import SkippedSample

SETTINGS = "config.yaml"
BAD_SAMPLES = "bad_samples.json"
REPLIES = "replies.jsonl"


class RunFolder:
    """Written by rank 0 only; every method that writes raises a TrainingError naming the file where it cannot."""

    def __init__(self, folder: Path, *, first_step: int) -> None:
        """Open a run's folder; rows of ``first_step`` and later, left by a run that went on further, are dropped."""
        self.folder = folder
        self._steps = folder / "steps.jsonl"
        with _naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._drop_bad_from(first_step)
            _drop_from(self._steps, first_step)
            if (folder / REPLIES).exists():
                _drop_from(folder / REPLIES, first_step)

    def _drop_bad_from(self, first_step: int) -> None:
        kept = [entry for entry in self.bad_samples() if entry["step"] < first_step] if first_step else []
        if kept:
            self.write_json(BAD_SAMPLES, kept)
        else:
            (self.folder / BAD_SAMPLES).unlink(missing_ok=True)

    def write_settings(self, settings: Any) -> None:
        """Write the resolved settings as YAML."""
        with _naming(self.folder):
            (self.folder / SETTINGS).write_text(yaml.safe_dump(plain_settings(settings), sort_keys=False))

    def write_step(self, report: StepReport) -> None:
        """Append one step."""
        with _naming(self._steps), self._steps.open("a") as file:
            file.write(json.dumps(report.to_json()) + "\n")

    def write_replies(self, replies: Sequence[Mapping[str, Any]]) -> None:
        """Append a step's replies to ``replies.jsonl``, one JSON object each."""
        path = self.folder / REPLIES
        with _naming(path), path.open("a") as file:
            file.writelines(json.dumps(reply) + "\n" for reply in replies)

    def steps(self) -> list[StepReport]:
        """The steps recorded so far."""
        return read_steps(self.folder) if self._steps.stat().st_size else []

    def write_bad_samples(self, step: int, bad: list[SkippedSample]) -> None:
        """Add a step's to ``bad_samples.json``."""
        self.write_json(BAD_SAMPLES, [*self.bad_samples(), *({"step": step, **one.to_json()} for one in bad)])

    def bad_samples(self) -> list[dict[str, Any]]:
        """All samples this run could not load.

        Raises:
            TrainingError: the file is cut off or damaged.
        """
        path = self.folder / BAD_SAMPLES
        try:
            return _bad_entries(json.loads(path.read_bytes())) if path.exists() else []
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise TrainingError(
                f"{path}: does not list samples with their steps and reasons; remove it to go on; samples of earlier "
                "steps are then not listed"
            ) from error

    def write_json(self, name: str, value: Any) -> None:
        """Write one JSON file aside and rename it."""
        aside = self.folder / f".{name}.partial"
        with _naming(self.folder / name):
            aside.write_text(json.dumps(value, indent=2) + "\n")
            aside.rename(self.folder / name)


def plain_settings(settings: Any) -> dict[str, Any]:
    """The resolved settings as they are written."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(settings))
    return plain


def _bad_entries(listed: Any) -> list[dict[str, Any]]:
    """The entries as they are, once they are seen to hold what is told of them."""
    for entry in listed:
        SkippedSample(**{name: value for name, value in entry.items() if name != "step"})
        if not isinstance(entry["step"], int) or not isinstance(entry["joins_step"], int):
            raise TypeError(entry)
    return list(listed)


def _drop_from(path: Path, first_step: int) -> None:
    """Keep the lines of earlier steps; what was cut off while it was written, at the end, goes too."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    steps = [_step_of(line) for line in lines]
    while steps and steps[-1] is None:
        steps.pop()
    kept = []
    for number, (line, step) in enumerate(zip(lines, steps, strict=False), start=1):
        if step is None:
            raise TrainingError(f"{path}:{number}: not the record of a step; remove the line")
        if step < first_step:
            kept.append(line)
    aside = path.with_name(f".{path.name}.partial")
    aside.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    aside.rename(path)


def _step_of(line: str) -> int | None:
    """The step a line is of, or None where it is no whole record."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return step if isinstance(step, int) else None


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn a failure to write into one line that names the file."""
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"cannot write {path}: {error.strerror}; free space or choose another runs folder"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
