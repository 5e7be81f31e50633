"""Samples a run does not train on, told before it begins."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from trimtab.errors import TrainingError
from trimtab.schema.number_of import number_of

LEFT_OUT = "left_out.json"
_SHOWN = 20


def list_left_out(samples: list[tuple[str, str]], folder: Path) -> None:
    """Write (sample id, reason) pairs to ``left_out.json`` in a run's folder, and tell the first of them.

    Raises:
        TrainingError: the file cannot be written.
    """
    path = folder / LEFT_OUT
    try:
        folder.mkdir(parents=True, exist_ok=True)
        rows = [{"sample_id": name, "reason": reason} for name, reason in samples]
        path.write_text(json.dumps(rows, indent=2) + "\n") if samples else path.unlink(missing_ok=True)
    except OSError as error:
        raise TrainingError(
            f"cannot write {path}: {error.strerror}; free space or choose another runs folder"
        ) from error
    console = Console(stderr=True)
    if samples:
        many = number_of(len(samples), "sample")
        console.print(f"left out, as no pack can hold it: {many}, all listed in {path}:", soft_wrap=True)
    for name, reason in samples[:_SHOWN]:
        console.print(f"  {name}: {reason}", markup=False, soft_wrap=True)
