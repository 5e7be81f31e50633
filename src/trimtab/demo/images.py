"""Encoded still pictures of scenes: JPEG and PNG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trimtab.demo.shapes import Scene

_OPTIONS: dict[str, dict[str, Any]] = {".jpg": {"quality": 90}, ".png": {"compress_level": 1}}


def write_picture(path: Path, scene: Scene) -> None:
    """Draw and encode one picture in the format of the file's suffix, ``.jpg`` or ``.png``.

    Raises:
        ValueError: another suffix.
    """
    if path.suffix not in _OPTIONS:
        raise ValueError(f"{path.name}: the suffix must be one of {', '.join(_OPTIONS)}")
    scene.draw().save(path, **_OPTIONS[path.suffix])
