"""A small scanned dataset of real files and a tiny model, for whole runs in tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import av
import numpy as np
import skimage
import torch
import torch.distributed as dist
from PIL import Image
from tests.chat_tokenizer import SPECIAL, chat_tokenizer

from trimtab.demo.tiny_models import tiny_config
from trimtab.families.checkpoint import read_checkpoint
from trimtab.loader.scan import Scanner
from trimtab.loader.sources import open_dataset
from trimtab.runtime.groups import ranks_of_default_group
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.schema.table_file import write_table
from trimtab.training.settings import SFTSettings
from trimtab.training.sft import train

PHOTOS = Path(skimage.__file__).parent / "data"
LIMITS = {"min_pixels": 3136, "max_pixels": 30_000}


def write_run(folder: Path, *, family: str = "qwen2_5_vl", samples: int = 12, photos: bool = True) -> dict[str, Any]:
    """Write model, media, dataset and table; returns the settings that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / "model", family)
    media = folder / "media"
    media.mkdir()
    records = [_record(row, media, photos) for row in range(samples)]
    data = folder / "train.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    scan(folder / "model", data, folder / "train.parquet")
    return {"model": folder / "model", "data": (data,), "table": folder / "train.parquet", "runs": folder / "runs"}


def write_model(folder: Path, family: str) -> None:
    config, tokenizer = tiny_config(family), chat_tokenizer()
    names = ("vision_start", "vision_end", "image", "video")
    for name, token in zip(names, SPECIAL[3:], strict=True):
        setattr(config, f"{name}_token_id", tokenizer.convert_tokens_to_ids(token))
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (folder / name).write_text(json.dumps(LIMITS))


def scan(model: Path, data: Path, out: Path) -> None:
    checkpoint = read_checkpoint(model)
    scanner = Scanner(tokenizer=chat_tokenizer(), family=checkpoint.family, geometry=checkpoint.geometry)
    write_table(scanner.scan(open_dataset(data)).table, out)


def train_on_rank(group: dist.ProcessGroup, settings: SFTSettings) -> bool:
    return train(settings, ranks_of_default_group(torch.device("cpu"), timeout_s=30))


def train_within(
    group: dist.ProcessGroup, settings: SFTSettings, change: Callable[[int], AbstractContextManager[None]]
) -> bool:
    """The same within ``change(rank)``, which alters something on this rank and undoes it: ranks are shared."""
    with change(group.rank()):
        dist.barrier(group)
        return train_on_rank(group, settings)


@contextmanager
def packs_take_a_microsecond_a_row(rank: int) -> Iterator[None]:
    """What measuring costs finds, without its noise."""

    def took(model: object, pack: PackedBatch, device: torch.device) -> float:
        return 1e3 * (len(pack.pixel_values) or sum(pack.packed_lengths))

    with mock.patch("trimtab.training.calibrate._run", took):
        yield


def steps_of(settings: SFTSettings) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (settings.folder / "steps.jsonl").read_text().splitlines()]


def write_clip(path: Path, *, frames: int, width: int = 64, height: int = 56) -> None:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=8)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for index in range(frames):
            pixels = np.full((height, width, 3), 40, dtype=np.uint8)
            pixels[10:30, (index * 3) % width : (index * 3) % width + 20] = (200, 30, 30)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def _record(row: int, media: Path, photos: bool) -> dict[str, Any]:
    parts: list[dict[str, str]] = []
    if row % 4 in (0, 1):
        images = [_image(media, row, index, photos) for index in range(row % 4 + 1)]
        parts += [{"type": "image", "image": str(image)} for image in images]
    if row % 4 == 2:
        clip = media / f"{row}.mp4"
        write_clip(clip, frames=8 * (row % 3 + 1))
        parts.append({"type": "video", "video": str(clip)})
    parts.append({"type": "text", "text": f"Which colour is the square {row}?"})
    answer = {"role": "assistant", "content": "blue" if row % 4 == 3 else "red"}
    return {"id": f"sample-{row}", "messages": [{"role": "user", "content": parts}, answer]}


def _image(media: Path, row: int, index: int, photos: bool) -> Path:
    if photos and row == 0:
        return PHOTOS / "astronaut.png"
    path = media / f"{row}-{index}.jpg"
    side = 60 + 20 * row
    draw = np.random.default_rng([row, index])
    Image.fromarray(draw.integers(0, 255, (side, side + 30, 3), dtype=np.uint8)).save(path)
    return path
