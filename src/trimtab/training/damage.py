"""Checkpoints that were whole once and no longer are, and what is left to resume from then."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

from torch.distributed.checkpoint import FileSystemReader

from trimtab.training.checkpoint_names import PREVIOUS, PROGRESS, checkpoints_in, name_after


def damaged_file(checkpoint: Path, rank: int, ranks: int) -> str | None:
    """The first of a rank's share of a checkpoint's tensors whose file is cut off, changed or gone; None: all are well.

    Torch stores each tensor as a zip archive with checksums, and does not look at these when it loads.

    Args:
        checkpoint: its folder.
        rank: whose share is looked at.
        ranks: how many share the work.

    Returns:
        The file's name and what is wrong with it.

    Raises:
        OSError: a file is there and cannot be read.
    """
    try:
        stored = FileSystemReader(checkpoint).read_metadata().storage_data
        places = sorted((each.relative_path, each.offset, each.length) for each in stored.values())
    except FileNotFoundError:
        return ".metadata is missing"
    except OSError:
        raise
    except Exception:  # what unpickling raises where bytes are not what they were
        return ".metadata is damaged"
    for name, offset, length in places[rank::ranks]:
        try:
            with (checkpoint / name).open("rb") as file:
                file.seek(offset)
                content = file.read(length)
        except FileNotFoundError:
            return f"{name} is missing"
        if not _is_whole(content):
            return f"{name} is damaged"
    return None


def _is_whole(content: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except Exception:  # a changed directory of an archive makes zipfile raise all sorts of errors
        return False


def what_remains(damaged: Path) -> str:
    """How to go on without a checkpoint: from another one, or from the beginning."""
    folder = damaged.parent
    others = [path for path in checkpoints_in(folder) if path != damaged and (path / PROGRESS).is_file()]
    if others:
        return f"remove that folder to resume from {others[-1].name}"
    try:
        step = int(json.loads((folder / PREVIOUS / PROGRESS).read_text())["next_step"])
    except (OSError, ValueError, TypeError, KeyError):
        return "there is no other checkpoint: begin anew without --resume"
    return (
        f"begin anew without --resume, or go on with the run before it: remove that folder and rename "
        f"{folder / PREVIOUS} to {name_after(step)}"
    )
