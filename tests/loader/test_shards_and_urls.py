"""WebDataset shards, folders of Hugging Face datasets, and URLs of which only ranges are read."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from PIL import Image
from tests.chat_tokenizer import chat_tokenizer
from tests.loader.media_cases import GEOMETRY, PHOTO, write_clip

from trimtab.errors import DatasetError, MediaError
from trimtab.families.registry import family_for
from trimtab.loader.media_reader import open_media_reader
from trimtab.loader.scan import Scanner
from trimtab.loader.sources import Dataset, open_dataset
from trimtab.media.patches import read_patches
from trimtab.media.probe import probe_image
from trimtab.media.visual import describe

ANSWER = {"role": "assistant", "content": "Red."}


class CountedFiles(AbstractFileSystem):
    """Serves local files as ``counted://`` and counts the bytes fetched."""

    protocol = "counted"
    fetched: ClassVar[int] = 0

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        file = Path("/" + path.lstrip("/"))
        if not file.is_file():
            raise FileNotFoundError(path)
        return {"name": path, "size": file.stat().st_size, "type": "file"}

    def _open(self, path: str, mode: str = "rb", block_size: int = 1 << 18, **options: Any) -> Any:
        return CountedFile(self, path, mode, block_size, **options)


class CountedFile(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        CountedFiles.fetched += end - start
        with open("/" + self.path.lstrip("/"), "rb") as stream:
            stream.seek(start)
            return stream.read(end - start)


@pytest.fixture(autouse=True)
def counted() -> None:
    fsspec.register_implementation("counted", CountedFiles, clobber=True)
    CountedFiles.fetched = 0


def write_shard(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def picture(colour: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (120, 60), colour).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    clip = write_clip(tmp_path / "clip.mp4").read_bytes()
    listed = {"messages": [{"role": "user", "content": "<image><video>?"}, ANSWER], "images": ["b.png"], "videos": None}
    return write_shard(
        tmp_path / "s.tar",
        {
            "a.txt": b"A red square.",
            "a.png": picture("red"),
            "b.png": picture("blue"),
            "b.mp4": clip,
            "b.json": json.dumps(listed).encode(),
        },
    )


def scan(dataset: Dataset) -> Any:
    return Scanner(tokenizer=chat_tokenizer(), family=family_for("qwen2_5_vl"), geometry=GEOMETRY).scan(dataset).table


@pytest.mark.parametrize("prefix", ["", "counted://"])
def test_a_shard_is_scanned_and_decoded_by_ranges(shard: Path, tmp_path: Path, prefix: str) -> None:
    dataset = open_dataset(f"{prefix}{shard}")
    captioned, listed = dataset[0], dataset[1]
    assert [part.kind for part in captioned.messages[0].parts] == ["image"]
    assert captioned.messages[1].parts[0].text == "A red square."
    assert captioned.sample_id == "a"
    assert [visual.kind for visual in listed.visuals] == ["image", "video"]
    table = scan(dataset)
    reader = open_media_reader(table, f"{prefix}{shard}")
    (tmp_path / "b.png").write_bytes(picture("blue"))
    for visual, file in enumerate(("b.png", "clip.mp4")):
        task = reader.decode_task(1, visual, 0, int(table.grid_thw[1 + visual, 0]))
        assert task.data is None
        expected = read_patches(describe(task.visual.kind, str(tmp_path / file), GEOMETRY), GEOMETRY)
        np.testing.assert_array_equal(read_patches(task.visual, GEOMETRY), expected)


def test_what_is_wrong_with_a_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "no.tar").write_bytes(b"nothing" * 200)
    with pytest.raises(DatasetError, match=r"no\.tar: not a readable tar"):
        open_dataset(tmp_path / "no.tar")
    shard = write_shard(tmp_path / "s.tar", {"a.png": picture("red"), "b.json": b"{", "c.json": b"[]"})
    for row, problem in enumerate(
        (r"s\.tar:a: has neither", r"s\.tar:b: b\.json is not valid", "JSON object, found a list")
    ):
        with pytest.raises(DatasetError, match=problem):
            open_dataset(shard)[row]


def test_probing_a_header_does_not_fetch_the_file(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (900, 1200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.bmp")
    size = (tmp_path / "large.bmp").stat().st_size
    probe = probe_image(f"counted://{tmp_path}/large.bmp")
    assert (probe.width, probe.height) == (1200, 900)
    assert 0 < CountedFiles.fetched < size / 4


def test_jsonl_and_parquet_are_read_from_urls_with_media_beside_them(tmp_path: Path) -> None:
    Image.open(PHOTO).save(tmp_path / "photo.png")
    record = {"messages": [{"role": "user", "content": "<image>?"}, ANSWER], "images": ["photo.png"]}
    (tmp_path / "d.jsonl").write_text(json.dumps(record) + "\n")
    pq.write_table(pa.Table.from_pylist([record]), tmp_path / "d.parquet")
    dataset = open_dataset([f"counted://{tmp_path}/d.jsonl", f"counted://{tmp_path}/d.parquet"])
    assert [dataset[row].visuals[0].uri for row in range(2)] == [f"counted://{tmp_path}/photo.png"] * 2
    table = scan(dataset)
    expected = read_patches(describe("image", str(tmp_path / "photo.png"), GEOMETRY), GEOMETRY)
    np.testing.assert_array_equal(read_patches(table.visual(1), GEOMETRY), expected)
    with pytest.raises(DatasetError, match=r"gone\.jsonl: cannot be read"):
        open_dataset(f"counted://{tmp_path}/gone.jsonl")
    with pytest.raises(
        DatasetError, match=r"nosuch://x/d\.jsonl: cannot be read \(Protocol not known: nosuch\); check"
    ):
        open_dataset("nosuch://x/d.jsonl")


@pytest.mark.parametrize(
    ("url", "module", "package"),
    [
        ("http://x/a.jsonl", "aiohttp", "aiohttp"),
        ("https://x/a.jsonl", "aiohttp", "aiohttp"),
        ("s3://x/a.jsonl", "s3fs", "s3fs"),
        ("gs://x/a.jsonl", "gcsfs", "gcsfs"),
        ("smb://x/y/a.jsonl", "smbclient", "smbprotocol"),
    ],
)
def test_a_url_whose_protocol_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, url: str, module: str, package: str
) -> None:
    for name in [module, *(name for name in sys.modules if name.startswith("fsspec.implementations.http"))]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, url.partition(":")[0], raising=False)
    monkeypatch.setattr("sys.meta_path", [_Lacking(module), *sys.meta_path])
    told = rf"{url}: cannot be %s \(its protocol needs {module}, which is not installed\); pip install {package}$"
    with pytest.raises(DatasetError, match=told % "read"):
        open_dataset(url)
    with pytest.raises(MediaError, match=told % "opened"):
        probe_image(url)


class _Lacking(MetaPathFinder):
    """Finds every module but one."""

    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] == self._module:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def save_to_disk(folder: Path, rows: list[dict[str, Any]], **state: Any) -> Path:
    """What ``datasets`` writes: Arrow streams and a state file."""
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    names = [f"data-{part:05}-of-00002.arrow" for part in range(2)]
    for part, name in enumerate(names):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(part * 2, 2))
    files = [{"filename": name} for name in names]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_fingerprint": "f", **state}))
    return folder


def test_a_saved_hugging_face_dataset_is_read_without_its_library(tmp_path: Path) -> None:
    rows = [
        {
            "messages": [{"role": "user", "content": f"<image>{n}"}, ANSWER],
            "images": [{"bytes": picture("red"), "path": None}],
        }
        for n in range(3)
    ]
    dataset = open_dataset(save_to_disk(tmp_path / "hf", rows))
    assert len(dataset) == 3
    assert dataset[2].messages[0].parts[1].text == "2"
    assert len(scan(dataset)) == 3
    save_to_disk(tmp_path / "dict" / "train", rows)
    (tmp_path / "dict" / "dataset_dict.json").write_text("{}")
    with pytest.raises(DatasetError, match="holds the splits train"):
        open_dataset(tmp_path / "dict")
    with pytest.raises(DatasetError, match="flatten_indices"):
        open_dataset(save_to_disk(tmp_path / "chosen", rows, _indices_files=[{"filename": "i.arrow"}]))
    with pytest.raises(DatasetError, match="save_to_disk did not write"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("path", ["../secret.png", "/etc/passwd", "link/secret.png", "counted://etc/passwd"])
def test_media_outside_the_allowed_roots_is_refused(tmp_path: Path, path: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.png").write_bytes(picture("red"))
    (inside / "open.png").write_bytes(picture("red"))
    (inside / "link").symlink_to(tmp_path)
    records = [
        {"messages": [{"role": "user", "content": "<image>"}, ANSWER], "images": [image]}
        for image in ("open.png", path)
    ]
    (inside / "d.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    allowed = open_dataset(inside / "d.jsonl", allowed_roots=[inside])
    assert allowed[0].visuals
    with pytest.raises(DatasetError, match=r"d\.jsonl:2: .* is outside the allowed roots"):
        allowed[1]
    if path == "../secret.png":
        table = scan(open_dataset(inside / "d.jsonl"))
        with pytest.raises(DatasetError, match="outside the allowed roots"):
            open_media_reader(table, inside / "d.jsonl", allowed_roots=[inside]).decode_task(1, 0, 0, 1)


def test_a_member_cut_off_is_a_media_error(shard: Path) -> None:
    uri = open_dataset(shard)[0].visuals[0].uri
    visual = describe("image", uri, GEOMETRY)
    content = shard.read_bytes()
    shard.write_bytes(content[: content.index(b"IDAT") + 20])
    with pytest.raises(MediaError, match=r"s\.tar#a\.png.*cannot be decoded"):
        read_patches(visual, GEOMETRY)
