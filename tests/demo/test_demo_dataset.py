import filecmp
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import av
import pytest
import seen
from PIL import Image

from trimtab.demo.dataset import DemoDataset, write_demo
from trimtab.demo.questions import answers
from trimtab.demo.settings import DatasetSettings

Record = dict[str, Any]


def records(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def media(record: Record) -> list[str]:
    return [part[part["type"]]["url"] for part in record["messages"][0]["content"] if part["type"] != "text"]


def question(record: Record) -> str:
    return str(record["messages"][0]["content"][-1]["text"])


def answer(record: Record) -> str:
    return str(record["messages"][1]["content"])


def both(demo: DemoDataset) -> list[Record]:
    return records(demo.train) + records(demo.held_out)


def of_kind(demo: DemoDataset, *kinds: str) -> list[Record]:
    found = [record for record in both(demo) if record["question_kind"] in kinds]
    assert found
    return found


def test_the_same_seed_writes_the_same_bytes(demo: DemoDataset, folder: Path, tmp_path: Path) -> None:
    write_demo(tmp_path, seed=0, train=104, held_out=39, show_progress=False)
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    assert len(files) == demo.files + 2
    _, different, missing = filecmp.cmpfiles(folder, tmp_path, map(str, files), shallow=False)
    assert not different
    assert not missing


def test_another_seed_writes_other_questions(demo: DemoDataset, tmp_path: Path) -> None:
    other = write_demo(tmp_path, seed=1, train=104, held_out=39, show_progress=False)
    assert other.train.read_text() != demo.train.read_text()


def test_every_sample_is_there_once(demo: DemoDataset) -> None:
    assert len(records(demo.train)) == 104
    assert len(records(demo.held_out)) == 39
    assert len({record["id"] for record in both(demo)}) == 143


def test_question_kinds_come_in_their_shares(demo: DemoDataset) -> None:
    shares = DatasetSettings().shares
    counts = Counter(record["question_kind"] for record in records(demo.train))
    for kind, share in shares.items():
        assert abs(counts[kind] - 104 * share / sum(shares.values())) <= 1


def test_held_out_questions_are_about_files_never_trained_on(demo: DemoDataset) -> None:
    trained = {path for record in records(demo.train) for path in media(record)}
    held_out = {path for record in records(demo.held_out) for path in media(record)}
    assert held_out
    assert not trained & held_out


@pytest.mark.parametrize(("kind", "choices"), [("colour", 6), ("count", 4), ("clip_colour", 6)])
def test_guessing_the_commonest_answer_earns_little(demo: DemoDataset, kind: str, choices: int) -> None:
    counts = Counter(answer(record) for record in of_kind(demo, kind))
    assert len(counts) == choices
    assert max(counts.values()) <= 2 * counts.total() / choices


def test_one_file_is_asked_about_several_times(demo: DemoDataset) -> None:
    uses = Counter(path for record in records(demo.train) for path in media(record))
    assert max(uses.values()) > 1


def test_media_paths_are_relative_and_exist(demo: DemoDataset, folder: Path) -> None:
    for path in {path for record in both(demo) for path in media(record)}:
        assert not Path(path).is_absolute()
        assert (folder / path).is_file()


def test_samples_show_no_one_or_several_files(demo: DemoDataset) -> None:
    assert {len(media(record)) for record in both(demo)} == {0, 1, 2}


def test_every_answer_is_one_known_word(demo: DemoDataset) -> None:
    assert {answer(record) for record in both(demo)} <= set(answers())


@pytest.mark.parametrize(("kind", "see"), [("colour", seen.colour), ("count", seen.count)])
def test_answers_about_a_picture_are_what_its_pixels_show(demo: DemoDataset, folder: Path, kind: str, see: Any) -> None:
    for record in of_kind(demo, kind):
        assert answer(record) == see(seen.picture(folder / media(record)[0])), record["id"]


def test_answers_about_a_clip_are_what_its_frames_show(demo: DemoDataset, folder: Path) -> None:
    for record in of_kind(demo, "direction", "clip_colour"):
        clip = seen.frames(folder / media(record)[0])
        expected = seen.direction(clip) if record["question_kind"] == "direction" else seen.colour(clip[0])
        assert answer(record) == expected, record["id"]


def test_answers_about_two_pictures_are_what_their_pixels_show(demo: DemoDataset, folder: Path) -> None:
    for record in of_kind(demo, "where", "pick"):
        colours = [seen.colour(seen.picture(folder / path)) for path in media(record)]
        by_ordinal = dict(zip(("first", "second"), colours, strict=True))
        assert colours[0] != colours[1]
        if record["question_kind"] == "pick":
            ordinal = re.fullmatch(r"Which colour is in the (\w+) picture\?", question(record))
            assert ordinal
            assert answer(record) == by_ordinal[ordinal[1]]
        else:
            colour = re.fullmatch(r"In which picture is (\w+)\?", question(record))
            assert colour
            assert by_ordinal[answer(record)] == colour[1]


def test_text_only_answers_follow_from_the_text(demo: DemoDataset) -> None:
    for record in of_kind(demo, "text"):
        assert not media(record)
        asked = re.search(r"Which colour is the (\w+)\?", question(record))
        assert asked
        assert re.findall(rf"The {asked[1]} is (\w+)\.", question(record)) == [answer(record)]


def test_pictures_have_a_heavy_tail_between_64_and_1024_pixels(folder: Path, demo: DemoDataset) -> None:
    sizes = [Image.open(path).size for suffix in ("jpg", "png") for path in folder.glob(f"media/*.{suffix}")]
    sides = sorted(side for size in sizes for side in size)
    areas = sorted(width * height for width, height in sizes)
    assert sides[0] >= 64
    assert 800 < sides[-1] <= 1024
    assert areas[-1] > 15 * areas[len(areas) // 2]


def test_clips_have_a_heavy_tail_between_half_a_second_and_40_seconds(folder: Path, demo: DemoDataset) -> None:
    seconds = []
    for path in folder.glob("media/*.mp4"):
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            assert stream.codec_context.name == "h264"
            seconds.append(float(stream.duration * stream.time_base))
    seconds.sort()
    assert seconds[0] < 1
    assert 10 < seconds[-1] <= 40
    assert seconds[-1] > 4 * seconds[len(seconds) // 2]


def test_pictures_are_jpeg_and_png(folder: Path, demo: DemoDataset) -> None:
    formats = {Image.open(path).format for path in folder.glob("media/*.*") if path.suffix in (".jpg", ".png")}
    assert formats == {"JPEG", "PNG"}
