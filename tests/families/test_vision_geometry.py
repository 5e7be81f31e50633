"""A checkpoint's files decide its geometry, as they decide the processors'."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.errors import MetadataError, SettingsError, UnknownModelError
from trimtab.families import FAMILIES, VisionGeometry, family_for, read_checkpoint, vision_geometry

IMAGE_FILE = {"min_pixels": 3136, "max_pixels": 12_845_056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}


def test_an_unknown_model_lists_the_known() -> None:
    with pytest.raises(UnknownModelError, match=r"'llama' is not supported; known: qwen2_vl, qwen2_5_vl, qwen3_vl"):
        family_for("llama")
    with pytest.raises(UnknownModelError, match="None"):
        vision_geometry({})


def test_a_model_type_names_its_family() -> None:
    assert family_for("qwen3_vl_moe").name == "qwen3_vl"
    assert all(family_for(name) is family for family in FAMILIES for name in family.model_types)


def test_silent_files_mean_the_familys_defaults() -> None:
    for family in FAMILIES:
        assert vision_geometry({"model_type": family.model_types[0]}) == family.defaults
        assert family.defaults.family == family.name


def test_the_vision_tower_decides_the_sizes() -> None:
    tower = {"patch_size": 7, "spatial_merge_size": 4, "temporal_patch_size": 1}
    geometry = vision_geometry({"model_type": "qwen2_5_vl", "vision_config": tower})
    assert (geometry.patch_size, geometry.merge_size, geometry.temporal_patch_size) == (7, 4, 1)
    assert (geometry.factor, geometry.patch_values) == (28, 147)


def test_a_processor_of_another_model_is_refused() -> None:
    with pytest.raises(UnknownModelError, match="patch_size is 14 but the vision tower's is 16"):
        vision_geometry({"model_type": "qwen3_vl"}, IMAGE_FILE)


def test_older_names_of_the_limits_win_over_the_size() -> None:
    size = {"shortest_edge": 5000, "longest_edge": 6000}
    geometry = vision_geometry({"model_type": "qwen2_vl"}, {"size": size, "max_pixels": 7000})
    assert (geometry.image_min_pixels, geometry.image_max_pixels) == (5000, 7000)


def test_videos_follow_the_image_file_where_they_have_none() -> None:
    shared = vision_geometry({"model_type": "qwen2_vl"}, IMAGE_FILE)
    assert (shared.video_min_pixels, shared.video_max_pixels) == (3136, 12_845_056)
    own = vision_geometry({"model_type": "qwen2_vl"}, IMAGE_FILE, {"max_pixels": 602_112, "fps": 1, "max_frames": 16})
    assert (own.video_max_pixels, own.video_fps, own.video_max_frames) == (602_112, 1.0, 16)
    assert own.image_max_pixels == 12_845_056


def test_the_cap_on_a_videos_tokens_is_on_only_where_the_file_says_so() -> None:
    for model_type, usual in [("qwen2_5_vl", 128_000), ("qwen3_vl", 768)]:
        config = {"model_type": model_type}
        assert vision_geometry(config).video_token_cap is None
        assert vision_geometry(config, None, {"cap_pixels_per_frame": True}).video_token_cap == usual
        assert vision_geometry(config, None, {"cap_pixels_per_frame": True, "max_video_tokens": 9}).video_token_cap == 9


def test_a_default_gives_way_to_the_limit_a_file_names() -> None:
    config = {"model_type": "qwen2_vl"}
    small = vision_geometry(config, {"max_pixels": 1000})
    assert (small.image_min_pixels, small.image_max_pixels, small.video_min_pixels) == (1000, 1000, 1000)
    large = vision_geometry(config, None, {"size": {"shortest_edge": 700_000}})
    assert (large.video_min_pixels, large.video_max_pixels) == (700_000, 700_000)


def test_a_fixed_number_of_frames_is_both_limits() -> None:
    geometry = vision_geometry({"model_type": "qwen3_vl"}, None, {"num_frames": 12})
    assert (geometry.video_min_frames, geometry.video_max_frames) == (12, 12)


@pytest.mark.parametrize(
    "limits", [{"min_pixels": 100, "max_pixels": 50}, {"min_frames": 10, "max_frames": 4}, {"fps": -1.0}]
)
def test_impossible_limits_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match="must be positive"):
        vision_geometry({"model_type": "qwen2_vl"}, None, limits)


def test_a_geometry_survives_as_key_value_metadata() -> None:
    for family in FAMILIES:
        assert VisionGeometry.from_metadata(family.defaults.to_metadata()) == family.defaults
    broken = {**FAMILIES[0].defaults.to_metadata(), "patch_size": "fourteen"}
    with pytest.raises(MetadataError, match="patch_size='fourteen'"):
        VisionGeometry.from_metadata(broken)
    del broken["patch_size"]
    with pytest.raises(MetadataError, match="no 'patch_size'"):
        VisionGeometry.from_metadata(broken)


def test_differences_name_the_fields() -> None:
    one = FAMILIES[0].defaults
    assert one.differences(one) == {}
    assert one.differences(replace(one, video_fps=1.0)) == {"video_fps": (2.0, 1.0)}


def write(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(json.dumps(content))


def test_a_checkpoint_folder_is_read_like_transformers_reads_it(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"model_type": "qwen2_5_vl"})
    assert read_checkpoint(tmp_path).geometry == family_for("qwen2_5_vl").defaults
    write(tmp_path, "preprocessor_config.json", IMAGE_FILE)
    assert read_checkpoint(tmp_path).geometry.video_max_pixels == 12_845_056
    write(tmp_path, "video_preprocessor_config.json", {"max_pixels": 50_000, "min_pixels": 10_000})
    assert read_checkpoint(tmp_path).geometry.video_max_pixels == 50_000
    nested = {"image_processor": {"max_pixels": 4000}, "video_processor": {"max_pixels": 602_112}}
    write(tmp_path, "processor_config.json", nested)
    checkpoint = read_checkpoint(tmp_path)
    assert (checkpoint.geometry.image_max_pixels, checkpoint.geometry.video_max_pixels) == (4000, 602_112)
    assert checkpoint.family.name == "qwen2_5_vl"


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match=r"no config\.json; give a downloaded"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnknownModelError, match=r"config\.json: not valid JSON"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UnknownModelError, match=r"expected a JSON object, found list"):
        read_checkpoint(tmp_path)


def test_every_batch_key_says_what_its_rows_belong_to() -> None:
    kinds = {"tokens", "patches", "visuals", "samples"}
    for family in FAMILIES:
        assert set(family.batch_rows.values()) <= kinds
        assert family.batch_rows["pixel_values"] == "patches"
    assert "second_per_grid_ts" in family_for("qwen2_5_vl").batch_rows
    assert "second_per_grid_ts" not in family_for("qwen2_vl").batch_rows
