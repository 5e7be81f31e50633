"""Loads a model folder's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from trimtab.errors import SettingsError


def load_tokenizer(folder: str | Path) -> Any:
    """The tokenizer saved in a folder; nothing is downloaded.

    Raises:
        SettingsError: the folder has none.
    """
    if not Path(folder).is_dir():
        raise SettingsError(f"no tokenizer: {folder} is not a folder; name one that holds a tokenizer")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(
            f"{folder}: holds no readable tokenizer ({reason}); save the model's tokenizer there"
        ) from error
