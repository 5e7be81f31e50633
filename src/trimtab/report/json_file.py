"""Reads one JSON object from a file, and says in one line why it cannot."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from trimtab.errors import MetadataError
from trimtab.schema.json_kind import json_kind


def read_text(path: Path) -> str:
    """A text file.

    Raises:
        MetadataError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise MetadataError(f"{path}: cannot be read ({error.strerror}); name a file you may read") from error
    except UnicodeDecodeError as error:
        raise MetadataError(f"{path}: is no text (byte {error.start} is not UTF-8); name a text file") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object a file holds, with finite numbers only.

    Raises:
        MetadataError: the file cannot be read, is no JSON object, or holds NaN or infinity.
    """
    text = read_text(path)
    try:
        content = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"{path}: is no JSON report can show ({error}); give what a --json printed") from error
    if not isinstance(content, dict):
        found = json_kind(content)
        raise MetadataError(f"{path}: must hold a JSON object, found {found}; give what a --json printed")
    return content


def _refuse(constant: str) -> float:
    raise ValueError(f"holds {constant}, which is no number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"holds {digits}, beyond what a float holds")
    return value
