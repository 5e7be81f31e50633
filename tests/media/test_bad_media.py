"""Bad files: one error that names the file and what to do, never a hang or a crash."""

import io
import os
import tarfile
import zlib
from pathlib import Path

import av
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from trimtab.errors import MediaError
from trimtab.families import vision_geometry
from trimtab.media import decode_image, describe, probe_image, probe_video, read_patches
from trimtab.media.geometry import frame_indices, smart_resize

QWEN = vision_geometry({"model_type": "qwen2_5_vl"})


def png(width: int = 60, height: int = 40) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((width, height), 50).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for kind in ("image", "video"):
        with pytest.raises(MediaError, match=r"gone\.bin: no such file; restore it"):
            describe(kind, str(tmp_path / "gone.bin"), QWEN)


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(MediaError, match=r"pipe\.png: not a regular file"):
        probe_image(str(tmp_path / "pipe.png"))


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0"])
def test_what_is_no_image_or_video_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.png"
    path.write_bytes(content)
    with pytest.raises(MediaError, match=r"odd\.png: of no image format"):
        probe_image(str(path))
    with pytest.raises(MediaError, match=r"odd\.png: "):
        probe_video(str(path))


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.95])
def test_a_truncated_image_is_named_when_it_is_decoded(tmp_path: Path, fraction: float) -> None:
    data = png()
    (tmp_path / "cut.png").write_bytes(data[: int(len(data) * fraction)])
    visual = describe("image", str(tmp_path / "cut.png"), QWEN)
    with pytest.raises(MediaError, match=r"cut\.png: cannot be decoded .*; restore it"):
        read_patches(visual, QWEN)


def test_a_video_that_claims_more_frames_than_a_table_holds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=4)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuvj420p"
        container.mux(stream.encode(av.VideoFrame(64, 64, "yuvj420p")))
        container.mux(stream.encode())
    content = bytearray(path.read_bytes())
    count = content.index(b"strh") + 40
    content[count : count + 4] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(MediaError, match=r"odd\.avi: its header claims 4294967294 frames, more than 2147483647"):
        probe_video(str(path))


def test_an_image_bomb_is_refused_from_its_header() -> None:
    bomb = bytearray(png())
    bomb[16:24] = (60_000).to_bytes(4) + (60_000).to_bytes(4)  # width and height
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4)
    for read in (probe_image, decode_image):
        with pytest.raises(MediaError, match=r"bomb\.png: .*shrink the image"):
            read("bomb.png", bytes(bomb))


def test_the_pixel_limit_is_an_argument(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="60x40 pixels exceed the limit of 2000"):
        probe_image("x.png", png(), max_pixels=2000)


def test_a_sliver_of_an_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match=r"sliver\.png: 2010x10 pixels: one side is more than 200 times"):
        describe("image", "sliver.png", QWEN, png(2010, 10))
    assert smart_resize(10, 2000, 28, 1, 10**9) == (28, 28)


def test_a_video_without_frames_is_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.mp4"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        output.start_encoding()
    with pytest.raises(MediaError, match=r"empty\.mp4: "):
        probe_video(str(path))
    with pytest.raises(MediaError, match="nothing to show"):
        frame_indices(0, 10.0, QWEN)


def test_sound_without_pictures_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame(format="s16", layout="mono", samples=800)
        frame.sample_rate = 8000
        output.mux(stream.encode(frame))
    with pytest.raises(MediaError, match=r"sound\.wav: has no video stream"):
        probe_video(str(path))


def test_members_of_archives_and_cells_of_parquet_files_are_read(tmp_path: Path) -> None:
    data = png()
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        member = tarfile.TarInfo("a/b.png")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    table = pa.table(
        {"image": [b"", data], "images": [[], [{"bytes": b"", "path": "p"}, {"bytes": data, "path": "q"}]]}
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1)
    for address in ("shard.tar#a/b.png", "t.parquet#1/image", "t.parquet#1/images/1"):
        visual = describe("image", f"{tmp_path}/{address}", QWEN)
        assert (visual.width, visual.height) == (60, 40)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("shard.tar#c.png", "no member c.png"),
        ("t.parquet#7/image", "fewer rows"),
        ("t.parquet#0/picture", "no column 'picture'"),
        ("t.parquet#0/text", "holds str, not bytes"),
        ("t.parquet#x/image", "no such cell"),
        ("gone.tar#c.png", "no such file as"),
        ("notes.txt#1", "neither a tar nor a Parquet file"),
    ],
)
def test_bad_addresses_inside_files_are_named(tmp_path: Path, address: str, message: str) -> None:
    tarfile.open(tmp_path / "shard.tar", "w").close()
    pq.write_table(pa.table({"image": [b"x"], "text": ["y"]}), tmp_path / "t.parquet")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(MediaError, match=message):
        probe_image(f"{tmp_path}/{address}")


def test_a_url_is_read_through_fsspec() -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://a.png", "wb") as file:
        file.write(png())
    assert probe_image("memory://a.png").width == 60
    with pytest.raises(MediaError, match=r"memory://b\.png: cannot be opened \(FileNotFoundError"):
        probe_image("memory://b.png")
