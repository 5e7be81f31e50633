"""The argument that names an architecture to predict costs of, and whether a table was made for it."""

from __future__ import annotations

import json
from pathlib import Path

from trimtab.cost.architecture import Architecture
from trimtab.cost.from_config import architecture_from_config
from trimtab.cost.models import model_preset, model_presets
from trimtab.errors import MetadataError, UnknownModelError
from trimtab.schema.table import MetadataTable


def architecture_help() -> str:
    """What ``--model`` takes, for its help text."""
    return f"folder of a checkpoint, a config.json, or: {', '.join(model_presets())}"


def load_architecture(name: str) -> Architecture:
    """A bundled model, or one from a checkpoint's ``config.json``.

    Raises:
        UnknownModelError: neither a bundled model nor a file that describes one.
    """
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    if not path.is_file():
        return model_preset(name)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnknownModelError(f"{path}: not JSON ({error}); give a model's config.json") from error
    if not isinstance(config, dict):
        raise UnknownModelError(f"{path}: holds no JSON object; give a model's config.json")
    return architecture_from_config(config, Path(name).resolve().name if path.name != name else None)


def check_made_for(table: MetadataTable, architecture: Architecture) -> None:
    """Refuse a table made for another model; a table that names none is taken as made for this one.

    Raises:
        MetadataError: names what differs.
    """
    vision, geometry = architecture.vision, table.geometry
    if vision is None or geometry is None:
        return
    pairs: dict[str, tuple[int | str, int | str]] = {
        "patch_size": (geometry.patch_size, vision.patch),
        "merge_size": (geometry.merge_size, vision.merge),
        "temporal_patch_size": (geometry.temporal_patch_size, vision.temporal_patch),
    }
    if not architecture.family.startswith(geometry.family):
        pairs["family"] = (geometry.family, architecture.family)
    differing = [f"{name} {mine!r} (model: {other!r})" for name, (mine, other) in pairs.items() if mine != other]
    if differing:
        raise MetadataError(
            f"the table was made for another model than {architecture.name}: {', '.join(differing)}; "
            "scan the dataset again for this model"
        )
