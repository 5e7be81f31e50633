"""Sizes of images and videos from their headers; of a video one frame is decoded, for its rotation."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import av
from PIL import Image, UnidentifiedImageError

from trimtab.errors import MediaError
from trimtab.media.source import open_source

MAX_SOURCE_PIXELS = 178_956_970
"""Pixels beyond which an image or frame is taken for a decompression bomb: 0.5 GiB of RGB, as Pillow's own limit."""

_ORIENTATION_TAG = 0x0112
_FALLBACK_FPS = 24.0
_MOST_FRAMES = 2**31 - 1
"""What metadata tables hold, years of video; larger counts are damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What headers say of an image or video.

    Attributes:
        width, height: pixels as displayed, after rotation.
        frames: frames the container declares; counted packets where it declares none; 1 for an image.
        fps: average frames a second, or None for an image.
        seconds: duration, ``frames / fps``, or None for an image.
        rotation: degrees counter-clockwise that bring a video upright: 0, 90, 180 or 270.
    """

    width: int
    height: int
    frames: int = 1
    fps: float | None = None
    seconds: float | None = None
    rotation: int = 0


def probe_image(uri: str, data: bytes | None = None, *, max_pixels: int = MAX_SOURCE_PIXELS) -> Probe:
    """Read an image's size from its header.

    Raises:
        MediaError: the file is missing, no image, empty, or larger than ``max_pixels``.
    """
    with open_source(uri, data) as source, open_image(uri, source, max_pixels) as image:
        width, height = image.size
        if _orientation(image, source) >= 5:
            width, height = height, width
    return Probe(width=width, height=height)


def probe_video(uri: str, data: bytes | None = None, *, max_pixels: int = MAX_SOURCE_PIXELS) -> Probe:
    """Read a video's size, frame count and frame rate.

    Raises:
        MediaError: the file is missing, no video, has no frame, more than a table can hold, or frames larger than
            ``max_pixels``.
    """
    with open_source(uri, data) as source:
        with open_container(uri, source) as container:
            stream = video_stream(uri, container)
            _check_pixels(uri, stream.width, stream.height, max_pixels)
            stream.codec_context.thread_count = 1  # one frame is decoded; threads cost more than they give
            first = _first_frame(uri, container)
            frames = int(stream.frames)
            rate = stream.average_rate or stream.guessed_rate
        if frames == 0:
            frames = _count_packets(uri, source)
    if frames > _MOST_FRAMES:
        raise MediaError(
            f"{uri}: its header claims {frames} frames, more than {_MOST_FRAMES}; restore it or remove its sample"
        )
    rotation = rotation_of(first)
    width, height = (first.height, first.width) if rotation % 180 else (first.width, first.height)
    fps = float(rate) if rate else _FALLBACK_FPS
    seconds = frames / rate if rate else frames / _FALLBACK_FPS
    return Probe(width=width, height=height, frames=frames, fps=fps, seconds=float(seconds), rotation=rotation)


@contextmanager
def large_images_unwarned() -> Iterator[None]:
    """Within, Pillow does not warn of images above half its limit, which names no file: ``max_pixels`` decides.

    Python filters warnings for all threads: enter it before they start, or where there is one.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def open_image(uri: str, source: str | BinaryIO, max_pixels: int = MAX_SOURCE_PIXELS) -> Image.Image:
    """An image whose header was read and found sane.

    Raises:
        MediaError: it is no image, empty, or larger than ``max_pixels``.
    """
    try:
        image = Image.open(source)
    except Image.DecompressionBombError as error:
        raise MediaError(f"{uri}: {error}; shrink the image or remove its sample") from error
    except UnidentifiedImageError as error:
        raise MediaError(f"{uri}: of no image format that Pillow knows; restore it or remove its sample") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise MediaError(f"{uri}: not a readable image ({error}); restore it or remove its sample") from error
    _check_pixels(uri, image.width, image.height, max_pixels)
    return image


def open_container(uri: str, source: str | BinaryIO) -> Any:
    """An opened container, a context manager.

    Raises:
        MediaError: it is no video.
    """
    try:
        return av.open(source, metadata_errors="ignore")
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise MediaError(f"{uri}: not a readable video ({_reason(error)}); restore it or remove its sample") from error


def video_stream(uri: str, container: Any) -> Any:
    """The container's first video stream.

    Raises:
        MediaError: it has none.
    """
    if not container.streams.video:
        raise MediaError(f"{uri}: has no video stream; restore it or remove its sample")
    return container.streams.video[0]


def rotation_of(frame: Any) -> int:
    """Degrees counter-clockwise that bring a frame upright, to the nearest quarter turn."""
    return round(frame.rotation / 90) % 4 * 90


def _first_frame(uri: str, container: Any) -> Any:
    try:
        for frame in container.decode(video=0):
            return frame
    except (av.error.FFmpegError, OSError) as error:
        raise MediaError(
            f"{uri}: no frame can be decoded ({_reason(error)}); restore it or remove its sample"
        ) from error
    raise MediaError(f"{uri}: the video has no frame; restore it or remove its sample")


def _count_packets(uri: str, source: str | BinaryIO) -> int:
    if not isinstance(source, str):
        source.seek(0)
    with open_container(uri, source) as container:
        stream = video_stream(uri, container)
        return sum(1 for packet in container.demux(stream) if packet.size and not packet.is_discard)


def _check_pixels(uri: str, width: int, height: int, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise MediaError(f"{uri}: {width}x{height} pixels; restore it or remove its sample")
    if width * height > max_pixels:
        raise MediaError(
            f"{uri}: {width}x{height} pixels exceed the limit of {max_pixels}; shrink it or remove its sample"
        )


def _orientation(image: Image.Image, source: str | BinaryIO) -> int:
    if image.format == "PNG" and "exif" not in image.info and not _has_late_exif(source):
        return 1  # Pillow would decode the whole image to look behind its pixels
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except (OSError, ValueError, TypeError, SyntaxError):
        return 1


def _has_late_exif(source: str | BinaryIO) -> bool:
    if isinstance(source, str):
        with open(source, "rb") as stream:
            return _scan_chunks(stream)
    position = source.tell()
    try:
        return _scan_chunks(source)
    finally:
        source.seek(position)


def _scan_chunks(stream: BinaryIO) -> bool:
    stream.seek(8)
    while len(header := stream.read(8)) == 8:
        if header[4:] == b"eXIf":
            return True
        stream.seek(int.from_bytes(header[:4]) + 4, io.SEEK_CUR)
    return False


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
