"""The checkpoint a run goes on from, and what its settings say otherwise than those it was made with."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trimtab.errors import CheckpointError, SettingsError
from trimtab.runtime.groups import Ranks
from trimtab.schema.yaml_file import read_yaml
from trimtab.training import checkpoint
from trimtab.training.checkpoint_names import latest, steps_of
from trimtab.training.run_folder import SETTINGS, plain_settings
from trimtab.training.settings import SFTSettings

_CHANGE_NOTHING = {
    *("data", "table", "root", "name", "runs", "stop_after", "checkpoint_every", "resume", "timeout_s"),
    *("evaluation", "rollout.record", "rollout.server"),
}
"""Settings whose value changes nothing of what follows; whether the data is the same its digest tells."""

_PACKS = ("tokens", "patches", "samples_per_pack", "max_samples", "window", "pool")


def checkpoint_to_resume(settings: SFTSettings, ranks: Ranks) -> Path | None:
    """The checkpoint the settings ask for, or None where the run begins anew.

    Rank 0 tells which settings differ from those the run had.

    Raises:
        CheckpointError: a setting is another that the checkpoint depends on, or the run is to end before it.
    """
    folder = settings.folder / "checkpoints"
    path = checkpoint.to_go_on_from(folder, resume=settings.resume, is_first=ranks.is_first)
    if path is None:
        if settings.resume and ranks.is_first:
            _say_of_other_modes(settings)
        return None
    changed = changed_settings(settings, path)
    must_stay = [_told(name, changed[name]) for name in changed if name in _must_stay(settings)]
    if must_stay:
        raise CheckpointError(
            f"cannot resume from {path}: {'; '.join(must_stay)}; put back what the run was made with, or give another "
            "name"
        )
    _check_steps(settings, path)
    if changed and ranks.is_first:
        listed = "; ".join(_told(name, values) for name, values in changed.items())
        print(f"--resume from {path.name} with settings that differ: {listed}", file=sys.stderr, flush=True)
    return path


def changed_settings(settings: SFTSettings, path: Path) -> dict[str, tuple[Any, Any]]:
    """By its dotted name, what each setting that matters was when a checkpoint was written, and is now.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    stored = checkpoint.read_progress(path).settings
    if stored is None:  # written before checkpoints had them
        try:
            stored = read_yaml(settings.folder / SETTINGS, SETTINGS)
        except SettingsError:
            return {}  # the checkpoint has checks of its own
    before, now = dict(_flat(stored)), dict(_flat(plain_settings(settings)))
    without_effect = set(_CHANGE_NOTHING)
    for method in ("packing.method", "lora.rank"):
        if before.get(method) == now[method] and now[method] in ("off", 0):
            without_effect.add(method.partition(".")[0])
    return {
        name: (before[name], value)
        for name, value in now.items()
        if name in before and before[name] != value and not _within(name, without_effect)
    }


def _must_stay(settings: SFTSettings) -> set[str]:
    """What the checkpoint's tensors and the order of its samples depend on."""
    names = {"seed", "packing.method", "lora.rank", "lora.targets"}
    if not settings.freeze_vision:
        names.add("freeze_vision")  # the optimizer has no state of a tower that was frozen
    if settings.packing.method == "off":
        return names | {"samples_per_step"}
    return names | {f"packing.{name}" for name in _PACKS}


def _check_steps(settings: SFTSettings, path: Path) -> None:
    done, last = steps_of(path), settings.last_step
    if last < done:
        name = "steps" if last == settings.steps else "stop_after"
        raise CheckpointError(
            f"cannot resume from {path}: {name}={last} ends before step {done}, where that goes on; set {name} "
            f"to {done} or more, or give another name"
        )


def _say_of_other_modes(settings: SFTSettings) -> None:
    for folder in sorted(settings.folder.parent.glob("*/checkpoints")):
        if latest(folder):
            print(f"{folder} has one, of a run with another balance.mode", file=sys.stderr, flush=True)


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _within(name: str, groups: set[str]) -> bool:
    return any(name == group or name.startswith(f"{group}.") for group in groups)


def _told(name: str, values: tuple[Any, Any]) -> str:
    was, now = (value if isinstance(value, str) else json.dumps(value) for value in values)
    return f"{name}: was {was}, now {now}"
