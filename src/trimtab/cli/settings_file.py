"""A YAML file of settings as the arguments it stands for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from trimtab.errors import SettingsError


def words_of_file(path: str) -> list[str]:
    """``--name=value`` for every setting in the file, nested ones with dots.

    Values are taken as they are written: ``mode: off`` is the word off, not the truth value YAML 1.1 makes of it.

    Raises:
        SettingsError: the file is missing, no YAML, or holds no mapping.
    """
    file = Path(path)
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"config={path}: cannot be read ({error}); name a YAML file") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"config={path}: is no YAML ({' '.join(str(error).split())}); correct it") from error
    if content in (None, ""):
        return []
    if not isinstance(content, dict):
        raise SettingsError(f"config={path}: holds {type(content).__name__}, not settings by name; write name: value")
    return list(_flat(content, ""))


def _flat(values: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"--{prefix}{name}={json.dumps(value) if isinstance(value, list) else value}"
