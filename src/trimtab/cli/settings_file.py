"""A YAML file of settings as the arguments it stands for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trimtab.errors import SettingsError
from trimtab.schema.yaml_file import read_yaml


def words_of_file(path: str) -> list[str]:
    """``--name=value`` for every setting in the file, nested ones with dots.

    Values are taken as they are written: ``mode: off`` is the word off, not the truth value YAML 1.1 makes of it.

    Raises:
        SettingsError: the file is missing, no YAML, or holds no mapping, or a setting twice.
    """
    content = read_yaml(Path(path), f"config={path}", as_written=True)
    if content in (None, ""):
        return []
    if not isinstance(content, dict):
        raise SettingsError(f"config={path}: holds {type(content).__name__}, not settings by name; write name: value")
    settings = list(_flat(content, ""))
    for name, count in Counter(name for name, _ in settings).items():
        if count > 1:
            raise SettingsError(f"config={path}: {name} is set {count} times, with dots and nested; leave one")
    return [f"--{name}={value}" for name, value in settings]


def _flat(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value) if isinstance(value, list) else value
