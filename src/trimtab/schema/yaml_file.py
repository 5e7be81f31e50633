"""YAML files that people write: what YAML lets pass in silence is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from trimtab.errors import SettingsError


def read_yaml(path: Path, where: str, *, as_written: bool = False) -> Any:
    """What a file holds.

    Args:
        path: of the file.
        where: how messages call it.
        as_written: every value is text; else ``off`` is a truth value and ``3`` a number.

    Raises:
        SettingsError: it cannot be read, is no YAML, or has a key twice in one place.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where}: cannot be read ({error}); name a YAML file") from error
    loader = yaml.BaseLoader(text) if as_written else yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        content = None if root is None else loader.construct_document(root)
    except (yaml.YAMLError, RecursionError) as error:
        raise SettingsError(f"{where}: is no YAML ({' '.join(str(error).split())}); correct it") from error
    finally:
        loader.dispose()
    for key, first, second in _repeated(root, set()):
        raise SettingsError(f"{where}: {key} stands in line {first} and again in line {second}; leave one")
    return content


def _repeated(node: yaml.Node | None, seen: set[int]) -> Iterator[tuple[str, int, int]]:
    """(key, line, other line) of keys that a mapping has twice, nested ones too."""
    if node is None or id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated(item, seen)
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key.value, str) and key.value in lines:
                yield key.value, lines[key.value], line
            lines.setdefault(str(key.value), line)
            yield from _repeated(value, seen)
