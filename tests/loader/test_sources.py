"""Datasets in the forms people have become one normal form; what is wrong with a record is named."""

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trimtab.errors import DatasetError
from trimtab.loader.sources import Conversation, Part, open_dataset


def write_lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def only(path: Path) -> Conversation:
    dataset = open_dataset(path)
    assert len(dataset) == 1
    return dataset[0]


def shape(conversation: Conversation) -> list[tuple[str, list[str]]]:
    return [(m.role, [part.text or part.kind for part in m.parts]) for m in conversation.messages]


QUESTION = {"role": "user", "content": "<image>\nWhat differs from <image>?"}
ANSWER = {"role": "assistant", "content": "The hat."}


def test_chat_messages_place_visuals_by_tags(tmp_path: Path) -> None:
    record = {"messages": [QUESTION, ANSWER], "images": ["a.jpg", "/b.jpg"], "videos": [], "source": "web"}
    conversation = only(write_lines(tmp_path / "d.jsonl", record))
    assert shape(conversation) == [
        ("user", ["image", "\nWhat differs from ", "image", "?"]),
        ("assistant", ["The hat."]),
    ]
    assert [(v.kind, v.uri, v.data) for v in conversation.visuals] == [
        ("image", f"{tmp_path}/a.jpg", None),
        ("image", "/b.jpg", None),
    ]
    assert conversation.sample_id == "d.jsonl:1"
    assert conversation.extras == {"source": "web"}


def test_openai_content_parts_carry_their_visuals(tmp_path: Path) -> None:
    picture = base64.b64encode(b"pixels").decode()
    content = [
        {"type": "text", "text": "Look: <image> is a tag here, not a place."},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
        {"type": "image_url", "image_url": {"url": "file:///x/a%20b.png"}},
        {"type": "image", "image": "c.png"},
        {"type": "video", "video": "d.mp4"},
        {"type": "image_url", "image_url": "s3://bucket/e.png"},
    ]
    conversation = only(
        write_lines(tmp_path / "d.jsonl", {"id": 7, "messages": [{"role": "user", "content": content}]})
    )
    assert conversation.sample_id == "7"
    assert [part.kind for part in conversation.messages[0].parts] == [
        "text",
        "image",
        "image",
        "image",
        "video",
        "image",
    ]
    assert [(v.kind, v.uri, v.data) for v in conversation.visuals] == [
        ("image", f"{tmp_path}/d.jsonl#0/0", b"pixels"),
        ("image", "file:///x/a%20b.png", None),
        ("image", f"{tmp_path}/c.png", None),
        ("video", f"{tmp_path}/d.mp4", None),
        ("image", "s3://bucket/e.png", None),
    ]


def test_content_parts_without_a_path_take_the_next_of_the_lists(tmp_path: Path) -> None:
    content = [{"type": "video"}, {"type": "image"}, {"type": "text", "text": "Compare."}, {"type": "image"}]
    record = {"messages": [{"role": "user", "content": content}], "images": ["1.png", "2.png"], "videos": "3.mp4"}
    conversation = only(write_lines(tmp_path / "d.jsonl", record))
    assert [Path(v.uri).name for v in conversation.visuals] == ["3.mp4", "1.png", "2.png"]


def test_llava_conversations_are_read_from_lines_and_arrays(tmp_path: Path) -> None:
    record = {
        "id": "000",
        "image": "coco/1.jpg",
        "conversations": [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A cat."}],
    }
    array = tmp_path / "llava.json"
    array.write_text(json.dumps([record]))
    for path in (write_lines(tmp_path / "llava.jsonl", record), array):
        conversation = only(path)
        assert shape(conversation) == [("user", ["image", "\nWhat?"]), ("assistant", ["A cat."])]
        assert conversation.visuals[0].uri == f"{tmp_path}/coco/1.jpg"


def test_verl_prompts_keep_bytes_and_rewards(tmp_path: Path) -> None:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"<image>Solve {row}."}],
            "images": [{"bytes": bytes([row]) * 3, "path": None}],
            "reward_model": {"style": "rule", "ground_truth": str(row)},
            "extra_info": {"index": row},
        }
        for row in range(5)
    ]
    path = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    dataset = open_dataset(path)
    for row in (4, 0, 3):
        conversation = dataset[row]
        assert shape(conversation) == [("user", ["image", f"Solve {row}."])]
        assert conversation.visuals[0].data == bytes([row]) * 3
        assert conversation.visuals[0].uri == f"{path}#{row}/images/0"
        assert conversation.extras["reward_model"]["ground_truth"] == str(row)
        assert conversation.extras["extra_info"] == {"index": row}


def test_several_files_are_one_dataset_whose_rows_can_be_found(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "a.jsonl", {"messages": [ANSWER]}, {"messages": [ANSWER]})
    two = tmp_path / "b.parquet"
    pq.write_table(pa.Table.from_pylist([{"messages": [QUESTION], "images": ["x", "y"]}]), two)
    dataset = open_dataset([one, two], root=tmp_path / "media")
    assert len(dataset) == 3
    assert [dataset.locate(row) for row in range(3)] == [(0, 0), (0, 1), (1, 0)]
    assert dataset.conversation(1, 0) == dataset[2]
    assert dataset[2].visuals[0].uri == f"{tmp_path}/media/x"
    assert [(file.name, file.rows) for file in dataset.files] == [("a.jsonl", 2), ("b.parquet", 1)]
    with pytest.raises(IndexError, match="row 3 is outside a dataset of 3"):
        dataset[3]


def test_a_dataset_can_be_sent_to_another_process(tmp_path: Path) -> None:
    path = tmp_path / "b.parquet"
    pq.write_table(pa.Table.from_pylist([{"messages": [ANSWER]}]), path)
    dataset = open_dataset([path, write_lines(tmp_path / "a.jsonl", {"messages": [ANSWER]})])
    assert pickle.loads(pickle.dumps(dataset))[0] == dataset[0]


def test_blank_lines_do_not_count_but_errors_name_the_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    good = json.dumps({"messages": [ANSWER]})
    path.write_bytes(f"\n{good}\r\n  \n{{broken\n{good}".encode())
    dataset = open_dataset(path)
    assert len(dataset) == 3
    assert dataset[2].messages == dataset[0].messages
    assert [dataset[row].sample_id for row in (0, 2)] == ["d.jsonl:2", "d.jsonl:5"], "as errors and editors count"
    with pytest.raises(DatasetError, match=r"d\.jsonl:4: not valid JSON .*correct or remove the line"):
        dataset[1]


def test_a_row_that_is_no_line_does_not_look_like_one_and_errors_and_samples_are_called_alike(tmp_path: Path) -> None:
    records = [{"messages": [ANSWER]}, {"messages": [{"role": "robot", "content": "x"}]}]
    (tmp_path / "d.json").write_text(json.dumps(records))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "d.parquet")
    for name in ("d.json", "d.parquet"):
        dataset = open_dataset(tmp_path / name)
        assert dataset[0].sample_id == dataset.name(0, 0) == f"{name}#0"
        with pytest.raises(DatasetError, match=rf"{tmp_path}/{name}#1: turn 0 has the unknown role"):
            dataset[1]


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "d.jsonl", {"messages": [ANSWER]})
    before = open_dataset(path).digest()
    assert open_dataset(path).digest() == before
    copy = tmp_path / "elsewhere" / "d.jsonl"
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    assert open_dataset(copy).digest() == before, "ranks may mount the same file in different places"
    path.write_text(path.read_text().replace("hat", "cap"))
    assert open_dataset(path).digest() != before


BAD_RECORDS = [
    ({"messages": [QUESTION], "images": ["a"]}, "place more images than the 1 listed"),
    ({"messages": [QUESTION], "images": ["a", "b", "c"]}, "3 images are listed but the messages place 2"),
    ({"messages": [ANSWER], "videos": ["a.mp4"]}, "1 video is listed but the messages place 0"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "turn 0 has the unknown role 'robot'; known: system, user"),
    ({"conversations": [{"from": "bing", "value": "x"}]}, "unknown role 'bing'"),
    ({"messages": []}, "messages must be a list of turns that is not empty"),
    ({"messages": "hello"}, "messages must be a list of turns"),
    ({"messages": ["hello"]}, "turn 0 must be an object, found text; correct"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "turn 0 calls a tool in tool_calls, which"),
    (
        {"messages": [QUESTION, {**ANSWER, "weight": 0.5}], "images": ["a", "b"]},
        "turn 1 has the weight 0.5, which is not supported; write 1, or 0",
    ),
    ({"messages": [{**ANSWER, "weight": False}]}, "turn 0 has the weight False"),
    ({"messages": [{**ANSWER, "weight": "0"}]}, "turn 0 has the weight '0'"),
    ({"messages": [{**ANSWER, "weight": [0]}]}, r"turn 0 has the weight \[0\]"),
    ({"messages": [{"role": "user"}]}, "content must be text or a list of parts, found nothing \\(null\\); write it"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "image": ""}]}]},
        "found empty text; correct or remove",
    ),
    (
        {"messages": [{"role": "user", "content": [3]}]},
        "a content part must be an object or text, found a number; correct",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "unknown content part type 'audio'"),
    (
        {"messages": [{"role": "user", "content": [{"type": "audio", "audio": "a.wav"}]}]},
        "unknown content part type 'audio'; known: text, image, video, image_url, video_url; correct it, or remove",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "image": "a", "fps": 1}]}]},
        "'fps', which is not supp",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "image": 5}]}]},
        "must be a path, URL or bytes, found a number; correct or remove it",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "image", "image": "data:image/png,x"}]}]}, "it is not base64"),
    ({"messages": [ANSWER], "images": 5}, "images must be a path or a list, found a number; correct it"),
    ({"text": "hello"}, "none of the fields messages, conversations, prompt is there, found text"),
    (["hello"], "a record must be a JSON object, found a list; correct or remove it"),
]


@pytest.mark.parametrize(("record", "message"), BAD_RECORDS)
def test_a_bad_record_is_named_with_file_and_line(tmp_path: Path, record: Any, message: str) -> None:
    dataset = open_dataset(write_lines(tmp_path / "d.jsonl", {"messages": [ANSWER]}, record))
    with pytest.raises(DatasetError, match=rf"d\.jsonl:2: .*{message}"):
        dataset[1]


def test_files_that_cannot_be_a_dataset_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n \n")
    (tmp_path / "d.txt").write_text("x")
    (tmp_path / "o.json").write_text("{}")
    (tmp_path / "l.json").write_text("{}\n{}")
    (tmp_path / "p.parquet").write_text("PAR1")
    for name, message in [
        ("gone.jsonl", "no such file; give the path"),
        ("empty.jsonl", "holds no record"),
        ("d.txt", r"unknown type '\.txt'; known: \.jsonl"),
        ("o.json", "must hold a JSON array of records, found an object; correct it"),
        ("l.json", r"name the file \.jsonl"),
        ("p.parquet", "not a readable Parquet file"),
        ("", "is a folder that datasets' save_to_disk did not write"),
    ]:
        with pytest.raises(DatasetError, match=message):
            open_dataset(tmp_path / name)
    with pytest.raises(DatasetError, match="no dataset file is given"):
        open_dataset([])


def test_parts_print_without_their_bytes(tmp_path: Path) -> None:
    picture = base64.b64encode(b"pixels").decode()
    content = [{"type": "image", "image": f"data:image/png;base64,{picture}"}]
    visual = only(write_lines(tmp_path / "d.jsonl", {"messages": [{"role": "user", "content": content}]})).visuals[0]
    assert "pixels" not in repr(visual)
    assert Part("text", "x") == Part("text", "x")
