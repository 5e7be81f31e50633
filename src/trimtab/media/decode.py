"""Decodes images and chosen frames of videos to RGB."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Literal

import av
import av.video.reformatter
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from trimtab.errors import MediaError
from trimtab.media.probe import open_container, open_image, rotation_of, video_stream
from trimtab.media.seek import Run, plan_seeks
from trimtab.media.source import open_source

MissingFrames = Literal["raise", "repeat"]

_SEQUENTIAL_FRAMES = 24
"""Videos wanted no further than this are read from the start: looking for key frames would cost more."""


def decode_image(uri: str, data: bytes | None = None) -> NDArray[np.uint8]:
    """Decode an image upright, transparency laid on white, as the Transformers processors do.

    Returns:
        uint8 [H, W, 3].

    Raises:
        MediaError: the file is missing, no image, truncated, or too large.
    """
    with open_source(uri, data) as source, open_image(uri, source) as image:
        try:
            return np.asarray(_to_rgb(ImageOps.exif_transpose(image)))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise MediaError(f"{uri}: cannot be decoded ({error}); restore it or remove its sample") from error


def decode_frames(
    uri: str,
    indices: Sequence[int] | NDArray[np.int64],
    data: bytes | None = None,
    *,
    missing: MissingFrames = "raise",
    threads: int = 1,
) -> NDArray[np.uint8]:
    """Decode chosen frames of a video, upright.

    Args:
        uri: the video.
        indices: frame positions in presentation order, not decreasing; may repeat.
        data: the encoded video, where the caller has it.
        missing: what to do where the video ends before a wanted frame (its header lied, or it is damaged): "raise", or
            "repeat" the last frame before it.
        threads: of the decoder.

    Returns:
        uint8 [len(indices), H, W, 3].

    Raises:
        MediaError: the file is missing, no video, has no frame, or ends early under "raise".
    """
    wanted = [int(index) for index in dict.fromkeys(np.asarray(indices).tolist())]
    with open_source(uri, data) as source:
        frames = _by_seeking(uri, source, wanted, threads) if wanted[-1] >= _SEQUENTIAL_FRAMES else None
        if frames is None:
            frames, last = _from_start(uri, source, wanted, threads)
            if last is None or (missing == "raise" and len(frames) < len(wanted)):
                raise MediaError(
                    f"{uri}: {len(frames)} of the {len(wanted)} frames wanted could be decoded, up to position "
                    f"{wanted[-1]}; restore the file or remove its sample"
                )
            frames = {index: frames.get(index, last) for index in wanted}
    return np.stack([frames[int(index)] for index in indices])


def _by_seeking(
    uri: str, source: str | BinaryIO, wanted: list[int], threads: int
) -> dict[int, NDArray[np.uint8]] | None:
    with _opened(uri, source, threads) as container:
        stream = video_stream(uri, container)
        try:
            runs = plan_seeks(container, stream, wanted)
            if runs is None:
                return None
            size = stream.width, stream.height
            to_array = _converter(size)
            found = [to_array(frame) for run in runs for frame in _decode_run(container, stream, run)]
        except (av.error.FFmpegError, OSError):
            return None  # reading from the start tells what can be had
    return dict(zip(wanted, found, strict=True)) if len(found) == len(wanted) else None


def _decode_run(container: Any, stream: Any, run: Run) -> Iterator[Any]:
    container.seek(run.keyframe_pts, stream=stream)
    wanted = set(run.pts)
    for frame in container.decode(stream):
        if frame.pts in wanted:
            yield frame
        if frame.pts is None or frame.pts >= run.pts[-1]:
            return


def _from_start(
    uri: str, source: str | BinaryIO, wanted: list[int], threads: int
) -> tuple[dict[int, NDArray[np.uint8]], NDArray[np.uint8] | None]:
    positions, found, frame = set(wanted), {}, None
    with _opened(uri, source, threads) as container:
        stream = video_stream(uri, container)
        to_array = _converter((stream.width, stream.height))
        try:
            for index, frame in enumerate(container.decode(stream)):
                if index in positions:
                    found[index] = to_array(frame)
                if index >= wanted[-1]:
                    break
        except (av.error.FFmpegError, OSError):
            pass  # the frames before the damage count; the caller decides on the rest
        return found, None if frame is None else to_array(frame)


def _opened(uri: str, source: str | BinaryIO, threads: int) -> Any:
    if not isinstance(source, str):
        source.seek(0)
    container = open_container(uri, source)
    if container.streams.video:
        container.streams.video[0].codec_context.thread_count = threads
    return container


def _converter(size: tuple[int, int]) -> Callable[[Any], NDArray[np.uint8]]:
    """From decoded frames to RGB arrays, upright; one scaler for all of them, which is most of a small frame's time."""
    scaler = av.video.reformatter.VideoReformatter()

    def convert(frame: Any) -> NDArray[np.uint8]:
        pixels = scaler.reformat(frame, width=size[0], height=size[1], format="rgb24", threads=1).to_ndarray()
        return np.rot90(pixels, rotation_of(frame) // 90)

    return convert


def _to_rgb(image: Image.Image) -> Image.Image:
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, layer).convert("RGB")
