"""The arguments that name a model, its tokenizer and its limits, shared by commands that need a geometry."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.errors import SettingsError, UnknownModelError
from trimtab.families import FAMILIES, Family, VisionGeometry, read_checkpoint

_LIMITS = (
    ("--min-pixels", "image_min_pixels", int, "fewest pixels of an image after resizing"),
    ("--max-pixels", "image_max_pixels", int, "most pixels of an image after resizing"),
    ("--fps", "video_fps", float, "video frames taken a second"),
    ("--min-frames", "video_min_frames", int, "fewest frames taken of a video"),
    ("--max-frames", "video_max_frames", int, "most frames taken of a video"),
    ("--video-min-pixels", "video_min_pixels", int, "fewest pixels of a video frame (Qwen3-VL: of the clip)"),
    ("--video-max-pixels", "video_max_pixels", int, "most pixels of a video frame (Qwen3-VL: of the clip)"),
)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--model``, ``--tokenizer`` and the limits."""
    known = ", ".join(family.name for family in FAMILIES)
    parser.add_argument("--model", required=True, help=f"folder of a Transformers checkpoint, or a family: {known}")
    parser.add_argument("--tokenizer", help="folder of a tokenizer; the model's own by default")
    limits = parser.add_argument_group("limits", "in place of those of the model's processors")
    for flag, field, kind, text in _LIMITS:
        limits.add_argument(flag, dest=field, type=kind, metavar="N", help=text)


def resolve_model(args: argparse.Namespace) -> tuple[Family, VisionGeometry]:
    """The family and geometry the arguments name.

    Raises:
        UnknownModelError: the folder is no checkpoint of a known family, and no family has that name.
        SettingsError: a limit is not positive, or a minimum exceeds its maximum.
    """
    limits = {field: value for _, field, *_ in _LIMITS if (value := getattr(args, field)) is not None}
    if Path(args.model).is_dir():
        checkpoint = read_checkpoint(args.model)
        return checkpoint.family, replace(checkpoint.geometry, **limits)
    for family in FAMILIES:
        if family.name == args.model:
            return family, replace(family.defaults, **limits)
    known = ", ".join(family.name for family in FAMILIES)
    raise UnknownModelError(
        f"--model {args.model}: neither a folder nor a known family ({known}); download the checkpoint, give its folder"
    )


def load_tokenizer(args: argparse.Namespace) -> Any:
    """The tokenizer the arguments name.

    Raises:
        SettingsError: no folder is named, or it holds no tokenizer.
    """
    from trimtab.loader.tokenizer import load_tokenizer as load

    folder = args.tokenizer or args.model
    if not Path(folder).is_dir():
        raise SettingsError(f"no tokenizer: {folder} is not a folder; give --tokenizer FOLDER")
    return load(folder)
