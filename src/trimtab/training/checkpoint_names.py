"""What a run's checkpoints are called: other names beside them, such as a copy somebody keeps, are left alone."""

from __future__ import annotations

import re
from pathlib import Path

PROGRESS = "progress.json"
PREVIOUS = "previous"
REPLACED = ".replaced"
_STEP = re.compile(rf"step-(?P<steps>\d+)({re.escape(REPLACED)})?")


def name_after(steps: int) -> str:
    """Of the checkpoint written when so many steps were done."""
    return f"step-{steps:06d}"


def steps_of(path: Path) -> int:
    """Steps a run had done when it wrote this checkpoint."""
    named = _STEP.fullmatch(path.name)
    assert named is not None, path
    return int(named["steps"])


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first; what replaces another comes behind it."""
    named = [path for path in folder.glob("step-*") if _STEP.fullmatch(path.name)]
    return sorted(named, key=lambda path: (steps_of(path), path.suffix != REPLACED))


def latest(folder: Path) -> Path | None:
    """The newest checkpoint in a folder that is whole by its name and ``progress.json``, or None."""
    return next((path for path in reversed(checkpoints_in(folder)) if (path / PROGRESS).is_file()), None)
