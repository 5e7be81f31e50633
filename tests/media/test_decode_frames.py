"""Chosen frames of a video: exact whichever way they are reached, contained where the file lies."""

import io
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.errors import MediaError
from trimtab.families import vision_geometry
from trimtab.media import decode_frames, describe, probe_video, read_patches
from trimtab.media.decode import _by_seeking

QWEN = vision_geometry({"model_type": "qwen2_5_vl"})


def write_video(
    path: Path,
    frames: int,
    *,
    size: tuple[int, int] = (64, 32),
    gop: int = 12,
    rotation: int = 0,
    container: str = "mp4",
) -> str:
    """A video whose frame i is of luma 16 + i throughout, so a decoded frame tells its position."""
    with av.open(str(path), "w", format=container) as output:
        stream = output.add_stream("libx264", rate=10, options={"crf": "0", "g": str(gop), "bf": "2"})
        stream.width, stream.height = size
        stream.pix_fmt = "yuv444p"
        stream.thread_count = 1
        if rotation:
            stream.set_display_rotation(rotation)
        for index in range(frames):
            planes = np.full((3, size[1], size[0]), 128, dtype=np.uint8)
            planes[0] = 16 + index
            output.mux(stream.encode(av.VideoFrame.from_ndarray(planes, format="yuv444p")))
        output.mux(stream.encode())
    return str(path)


def positions(frames: NDArray[np.uint8]) -> list[int]:
    return [round(float(frame.mean()) * 219 / 255) for frame in frames]


@pytest.fixture(scope="module")
def long_video(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_video(tmp_path_factory.mktemp("videos") / "long.mp4", 120)


@pytest.mark.parametrize(
    "wanted", [[0], [5, 7, 9], [119], [60, 61, 118], [0, 40, 80, 119], [30, 30, 31], list(range(120))]
)
def test_the_frames_asked_for_are_the_frames_given(long_video: str, wanted: list[int]) -> None:
    assert positions(decode_frames(long_video, wanted)) == wanted


def test_seeking_is_used_where_it_decodes_fewer_frames(long_video: str) -> None:
    reached = _by_seeking(long_video, long_video, [110, 119], 1)
    assert reached is not None
    assert positions(np.stack(list(reached.values()))) == [110, 119]
    assert _by_seeking(long_video, long_video, list(range(120)), 1) is None


@pytest.mark.parametrize(
    ("codec", "container", "options"),
    [
        ("libx264", "mp4", {"g": "30", "bf": "3", "x264-params": "open-gop=1"}),
        ("libx264", "matroska", {"g": "20"}),
        ("mpeg4", "avi", {"g": "20", "bf": "2"}),
        ("libvpx-vp9", "webm", {"g": "20", "deadline": "realtime", "cpu-used": "8"}),
        ("mpeg2video", "mpegts", {"g": "15", "bf": "2"}),
    ],
)
def test_seeking_gives_what_reading_from_the_start_gives(codec: str, container: str, options: dict[str, str]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (48, 200, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for index in range(100):
            view = np.ascontiguousarray(noise[:, index : index + 64])
            output.mux(stream.encode(av.VideoFrame.from_ndarray(view, format="rgb24")))
        output.mux(stream.encode())
    whole = decode_frames("v", range(100), buffer.getvalue())
    for wanted in ([99], [50, 98], [5, 46, 50, 74, 93]):
        np.testing.assert_array_equal(decode_frames("v", wanted, buffer.getvalue()), whole[wanted])


def test_a_video_in_memory_reads_like_the_file(long_video: str) -> None:
    data = Path(long_video).read_bytes()
    assert positions(decode_frames("name only", [3, 100], data)) == [3, 100]
    assert probe_video("name only", data) == probe_video(long_video)


@pytest.mark.parametrize("container", ["matroska", "mp4"])
def test_frames_are_counted_where_the_container_declares_none(tmp_path: Path, container: str) -> None:
    probe = probe_video(write_video(tmp_path / "v", 31, container=container))
    assert (probe.frames, probe.fps, probe.seconds) == (31, 10.0, pytest.approx(3.1))


@pytest.mark.parametrize("rotation", [90, 180, -90])
def test_a_rotated_video_is_measured_and_read_upright(tmp_path: Path, rotation: int) -> None:
    path = write_video(tmp_path / "v.mp4", 4, rotation=rotation)
    probe = probe_video(path)
    assert (probe.width, probe.height) == ((64, 32) if rotation == 180 else (32, 64))
    assert decode_frames(path, [0, 3]).shape[1:3] == (probe.height, probe.width)


def declare_frames(path: str, frames: int, count: int) -> bytes:
    """The file with every table of its header claiming another number of frames."""
    data = Path(path).read_bytes()
    kept = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(kept, "w", format="mp4") as output:
        stream = output.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.dts is not None and number < count:
                packet.stream = stream
                output.mux(packet)
    return kept.getvalue()


def test_a_video_shorter_than_scanned_is_refused_or_repeats_its_last_frame(tmp_path: Path) -> None:
    path = write_video(tmp_path / "v.mp4", 40, gop=1)
    visual = describe("video", path, QWEN)
    whole = read_patches(visual, QWEN)
    (tmp_path / "v.mp4").write_bytes(declare_frames(path, 40, 20))
    with pytest.raises(MediaError, match=r"v\.mp4: 4 of the 8 frames wanted could be decoded"):
        read_patches(visual, QWEN)
    short = read_patches(visual, QWEN, missing="repeat")
    assert short.shape == whole.shape
    half = len(whole) // 2
    np.testing.assert_array_equal(short[:half], whole[:half])
    last = decode_frames(path, [19])
    assert positions(decode_frames(path, [30, 35], missing="repeat")) == positions(last) * 2


def test_a_damaged_tail_is_refused_or_repeats_what_there_was(tmp_path: Path) -> None:
    data = bytearray(Path(write_video(tmp_path / "v.ts", 60, container="mpegts")).read_bytes())
    with pytest.raises(MediaError, match="frames wanted could be decoded"):
        decode_frames("cut.ts", [0, 59], bytes(data[: len(data) // 2]))
    frames = decode_frames("cut.ts", [0, 59], bytes(data[: len(data) // 2]), missing="repeat")
    assert positions(frames[:1]) == [0]
    assert 0 < positions(frames[1:])[0] < 59


@pytest.mark.parametrize("wanted", [[10], [50, 59]])
def test_a_video_without_any_frame_is_an_error_under_every_policy(tmp_path: Path, wanted: list[int]) -> None:
    with pytest.raises(MediaError, match="not a readable video"):
        decode_frames("none.mp4", wanted, b"not a video at all", missing="repeat")
