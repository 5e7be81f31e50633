"""Scenarios by name: YAML files bundled with the package, each with its sources and assumptions."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

_SCENARIOS = resources.files("trimtab.simulate") / "scenarios"


def scenario_names() -> tuple[str, ...]:
    """Names of the bundled scenarios."""
    files = [entry.name for entry in _SCENARIOS.iterdir()]
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def scenario_file(name: str) -> Path | None:
    """The file of a bundled scenario, or None where there is none of that name."""
    return Path(str(_SCENARIOS / f"{name}.yaml")) if name in scenario_names() else None
