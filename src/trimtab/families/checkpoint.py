"""Reads the JSON files of a Transformers checkpoint that decide its geometry; no weights, no transformers import."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.errors import UnknownModelError
from trimtab.families.family import Family
from trimtab.families.geometry import vision_geometry
from trimtab.families.registry import family_for
from trimtab.schema.geometry import VisionGeometry


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a checkpoint's JSON files say.

    Attributes:
        config: ``config.json``.
        image_processor, video_processor: the processors' settings, or None where no file has them.
    """

    config: Mapping[str, Any]
    image_processor: Mapping[str, Any] | None
    video_processor: Mapping[str, Any] | None

    @property
    def family(self) -> Family:
        """Its family.

        Raises:
            UnknownModelError: the model type is missing or unknown.
        """
        return family_for(str(self.config.get("model_type")))

    @property
    def geometry(self) -> VisionGeometry:
        """Its geometry."""
        return vision_geometry(self.config, self.image_processor, self.video_processor)


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read the configuration files of a checkpoint folder.

    Processors' settings are looked for where Transformers looks: nested in ``processor_config.json``, then in
    ``video_preprocessor_config.json`` (videos) and ``preprocessor_config.json`` (images, and videos without their own).

    Raises:
        UnknownModelError: the folder or its ``config.json`` is missing or malformed.
    """
    folder = Path(path)
    config = _read_json(folder / "config.json")
    if config is None:
        raise UnknownModelError(
            f"{folder}: no config.json; give a downloaded Transformers checkpoint's folder or a family name"
        )
    nested = _read_json(folder / "processor_config.json") or {}
    legacy = _read_json(folder / "preprocessor_config.json")
    image = nested.get("image_processor") or legacy
    video = nested.get("video_processor") or _read_json(folder / "video_preprocessor_config.json") or legacy
    return Checkpoint(config=config, image_processor=image, video_processor=video)


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnknownModelError(f"{path}: not valid JSON ({error}); restore the file") from error
    if not isinstance(content, dict):
        raise UnknownModelError(f"{path}: expected a JSON object, found {type(content).__name__}; restore the file")
    return content
