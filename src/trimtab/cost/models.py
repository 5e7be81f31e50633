"""Models by name: the presets bundled with the package."""

from __future__ import annotations

from importlib import resources

import yaml

from trimtab.cost.architecture import Architecture
from trimtab.cost.from_config import architecture_from_config
from trimtab.errors import UnknownModelError

_MODELS = resources.files("trimtab.cost.presets") / "models"


def model_presets() -> tuple[str, ...]:
    """Names of the bundled models."""
    return tuple(
        sorted(entry.name.removesuffix(".yaml") for entry in _MODELS.iterdir() if entry.name.endswith(".yaml"))
    )


def model_preset(name: str) -> Architecture:
    """The bundled model ``name``.

    Raises:
        UnknownModelError: there is none of that name.
    """
    if name not in model_presets():
        raise UnknownModelError(f"model {name!r} is not bundled; there are: {', '.join(model_presets())}")
    config = yaml.safe_load((_MODELS / f"{name}.yaml").read_text(encoding="utf-8"))
    return architecture_from_config(config, name)
