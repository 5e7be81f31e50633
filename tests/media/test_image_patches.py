"""Images: the same numbers as the Transformers processors'."""

import io
from pathlib import Path

import numpy as np
import pytest
import skimage
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from trimtab.errors import MediaError
from trimtab.families import VisionGeometry, vision_geometry
from trimtab.media import blank_patches, describe, read_patches

PHOTOS = Path(skimage.__file__).parent / "data"
LIMITS = {"shortest_edge": 4 * 28 * 28, "longest_edge": 300 * 28 * 28}
QWEN3 = {"patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def processor_and_geometry(family: str) -> tuple[Qwen2VLImageProcessorPil, VisionGeometry]:
    settings = {"size": LIMITS} | (QWEN3 if family == "qwen3_vl" else {})
    return Qwen2VLImageProcessorPil(**settings), vision_geometry({"model_type": family}, settings)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("photo", ["astronaut.png", "coffee.png", "chelsea.png", "camera.png"])
def test_a_photo_gives_the_processors_grid_and_values_to_the_last_bit(family: str, photo: str) -> None:
    if not (PHOTOS / photo).exists():
        pytest.fail(f"scikit-image no longer ships {photo}")
    processor, geometry = processor_and_geometry(family)
    visual = describe("image", str(PHOTOS / photo), geometry)
    with Image.open(PHOTOS / photo) as image:
        expected = processor(image, return_tensors="np")
    assert (visual.grid_t, visual.grid_h, visual.grid_w) == tuple(expected["image_grid_thw"][0])
    np.testing.assert_array_equal(read_patches(visual, geometry), expected["pixel_values"])


def save(image: Image.Image, path: Path, **options: object) -> str:
    image.save(path, **options)
    return str(path)


@pytest.mark.parametrize("size", [(1, 1), (10, 1900), (27, 29), (57, 1000), (640, 480), (1500, 900)])
def test_any_size_is_resized_like_the_processor(tmp_path: Path, size: tuple[int, int]) -> None:
    processor, geometry = processor_and_geometry("qwen2_5_vl")
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    path = save(Image.fromarray(noise), tmp_path / "noise.png")
    visual = describe("image", path, geometry)
    expected = processor(Image.fromarray(noise), return_tensors="np")
    assert (visual.grid_t, visual.grid_h, visual.grid_w) == tuple(expected["image_grid_thw"][0])
    np.testing.assert_array_equal(read_patches(visual, geometry), expected["pixel_values"])


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1"])
def test_every_colour_mode_is_converted_like_the_processor(tmp_path: Path, mode: str) -> None:
    processor, geometry = processor_and_geometry("qwen2_vl")
    noise = np.random.default_rng(1).integers(0, 256, (60, 90, 4), dtype=np.uint8)
    suffix = "tiff" if mode == "CMYK" else "png"
    path = save(
        Image.fromarray(noise, "RGBA").convert("RGB" if mode in "CMYK1P" else "RGBA").convert(mode),
        tmp_path / f"x.{suffix}",
    )
    with Image.open(path) as image:
        assert image.mode == mode
        expected = processor(image, return_tensors="np")["pixel_values"]
    np.testing.assert_array_equal(read_patches(describe("image", path, geometry), geometry), expected)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_rotated_photo_is_measured_and_read_upright(tmp_path: Path, suffix: str, orientation: int) -> None:
    _, geometry = processor_and_geometry("qwen2_vl")
    with Image.open(PHOTOS / "coffee.png") as image:
        small = image.resize((120, 60))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(small, tmp_path / f"rotated.{suffix}", exif=exif)
    visual = describe("image", path, geometry)
    assert (visual.width, visual.height) == ((60, 120) if orientation >= 5 else (120, 60))
    assert read_patches(visual, geometry).shape == (visual.patches, geometry.patch_values)


def test_orientation_behind_the_pixels_of_a_png_counts_too(tmp_path: Path) -> None:
    _, geometry = processor_and_geometry("qwen2_vl")
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.new("RGB", (120, 60)).save(buffer, "PNG", exif=exif)
    png = buffer.getvalue()
    start = png.index(b"eXIf") - 4
    length = int.from_bytes(png[start : start + 4]) + 12
    chunk, rest = png[start : start + length], png[:start] + png[start + length :]
    end = rest.index(b"IEND") - 4
    moved = tmp_path / "late.png"
    moved.write_bytes(rest[:end] + chunk + rest[end:])
    visual = describe("image", str(moved), geometry)
    assert (visual.width, visual.height) == (60, 120)
    assert len(read_patches(visual, geometry)) == visual.patches


def test_bytes_in_memory_read_like_the_file() -> None:
    _, geometry = processor_and_geometry("qwen2_5_vl")
    path = PHOTOS / "chelsea.png"
    visual = describe("image", str(path), geometry)
    data = path.read_bytes()
    assert describe("image", str(path), geometry, data) == visual
    np.testing.assert_array_equal(read_patches(visual, geometry, data=data), read_patches(visual, geometry))


def test_a_file_that_changed_since_the_scan_is_named(tmp_path: Path) -> None:
    _, geometry = processor_and_geometry("qwen2_vl")
    path = save(Image.new("RGB", (120, 60)), tmp_path / "a.png")
    visual = describe("image", path, geometry)
    save(Image.new("RGB", (60, 120)), tmp_path / "a.png")
    with pytest.raises(MediaError, match=r"a\.png: .*changed since the scan"):
        read_patches(visual, geometry)


def test_blank_patches_have_the_planned_shape(tmp_path: Path) -> None:
    _, geometry = processor_and_geometry("qwen2_vl")
    visual = describe("image", save(Image.new("RGB", (120, 60)), tmp_path / "a.png"), geometry)
    blank = blank_patches(visual, geometry)
    assert blank.shape == read_patches(visual, geometry).shape
    assert not blank.any()
