"""Describes a visual for the metadata table."""

from __future__ import annotations

from fractions import Fraction

from trimtab.errors import MediaError
from trimtab.media.geometry import image_grid, video_grid
from trimtab.media.probe import probe_image, probe_video
from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.metadata import Visual, VisualKind


def describe(kind: VisualKind, uri: str, geometry: VisionGeometry, data: bytes | None = None) -> Visual:
    """Probe a file and work out its patch grid.

    Raises:
        MediaError: the file cannot be probed, or its shape is beyond what the model takes.
    """
    probe = probe_image(uri, data) if kind == "image" else probe_video(uri, data)
    try:
        if kind == "image" or probe.fps is None:
            grid = image_grid(probe.height, probe.width, geometry)
        else:
            grid = video_grid(probe.frames, probe.fps, probe.height, probe.width, geometry)
    except MediaError as error:
        raise MediaError(f"{uri}: {error}") from error
    return Visual(
        kind=kind,
        grid_t=grid[0],
        grid_h=grid[1],
        grid_w=grid[2],
        source=uri,
        width=probe.width,
        height=probe.height,
        frames=probe.frames,
        seconds=probe.seconds,
    )


def frame_rate(visual: Visual) -> float:
    """Frames a second of a scanned video, rid of the rounding of its seconds.

    Raises:
        MediaError: the visual was not scanned as a video.
    """
    if not visual.frames or not visual.seconds:
        raise MediaError(f"{visual.source}: its frames and seconds were not scanned; scan the dataset again")
    return float(Fraction(visual.frames / visual.seconds).limit_denominator(100_000))
