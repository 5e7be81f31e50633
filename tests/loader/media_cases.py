"""Media and requests for tests of executors, and the plain pipeline their results must equal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import skimage
from tests.chat_tokenizer import chat_tokenizer

from trimtab.families.registry import family_for
from trimtab.loader.executors.decode_task import DecodeTask, MediaRequest, Patches
from trimtab.loader.media_reader import MediaReader, open_media_reader
from trimtab.loader.scan import Scanner
from trimtab.loader.sources import open_dataset
from trimtab.media.patches import read_patches
from trimtab.media.visual import describe
from trimtab.schema.metadata import VisualKind

GEOMETRY = replace(
    family_for("qwen2_5_vl").defaults, image_min_pixels=3136, image_max_pixels=30_000, video_min_pixels=3136
)
PHOTO = Path(skimage.__file__).parent / "data" / "astronaut.png"


def write_clip(path: Path, *, frames: int = 16, width: int = 112, height: int = 84) -> Path:
    """A video whose frames differ."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=4)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for index in range(frames):
            pixels = np.full((height, width, 3), (index * 37) % 256, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path


def whole(path: Path, kind: VisualKind = "image") -> DecodeTask:
    """The task that decodes all of a file."""
    visual = describe(kind, str(path), GEOMETRY)
    return DecodeTask(visual=visual, geometry=GEOMETRY, frame_start=0, frame_stop=visual.grid_t)


def ask(task: DecodeTask, frames: tuple[int, int] | None = None, *, step: int = 0) -> MediaRequest:
    """A request for some of a task's frames, or for all."""
    start, stop = frames or (task.frame_start, task.frame_stop)
    return MediaRequest(task=task, frame_start=start, frame_stop=stop, step=step)


def plain(request: MediaRequest) -> Patches:
    """What one process that reads just the requested frames gets."""
    return read_patches(request.task.visual, GEOMETRY, request.frame_start, request.frame_stop)


def scanned(folder: Path) -> MediaReader:
    """Five samples on disk and scanned: two of one clip, a photo, two other clips, one without a visual."""
    clips = [write_clip(folder / f"{n}.mp4", frames=8 * (n + 1)).name for n in range(3)]
    shown = [["video", clips[0]], ["image", str(PHOTO)], ["video", clips[1]], ["video", clips[2]], None]
    records = []
    for row, entry in enumerate(shown):
        kind, source = entry or ("image", str(PHOTO))
        content = f"<{kind}>" * (2 if row == 0 else entry is not None) + "What is it?"
        turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "A clip."}]
        records.append({"messages": turns, f"{kind}s": [source] * content.count("<")})
    data = folder / "train.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    scanner = Scanner(tokenizer=chat_tokenizer(), family=family_for("qwen2_5_vl"), geometry=GEOMETRY)
    return open_media_reader(scanner.scan(open_dataset(data)).table, data)
