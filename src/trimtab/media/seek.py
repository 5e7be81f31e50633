"""Where a video's frames lie in its stream, and the cheapest way to decode a few of them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

_SEEK_COST_FRAMES = 4
"""What one seek costs, in frames decoded (measured on h264, 640x360 and 1280x720)."""


@dataclass(frozen=True, slots=True)
class Run:
    """Frames decoded after one seek.

    Attributes:
        keyframe_pts: presentation time stamp to seek to.
        pts: time stamps of the wanted frames, increasing.
    """

    keyframe_pts: int
    pts: tuple[int, ...]


def plan_seeks(container: Any, stream: Any, wanted: list[int]) -> list[Run] | None:
    """Runs that decode fewer frames than reading from the start, or None where there is no such way.

    Packets are read, not decoded, so the positions are exact for a variable frame rate too.

    Args:
        container: an open container, at its start.
        stream: its video stream.
        wanted: frame positions in presentation order, increasing and distinct.
    """
    packets = [packet for packet in container.demux(stream) if packet.size and not packet.is_discard]
    if any(packet.pts is None for packet in packets):
        return None
    pts = sorted(packet.pts for packet in packets)
    if len(set(pts)) < len(pts) or wanted[-1] >= len(pts):
        return None
    position = {stamp: index for index, stamp in enumerate(pts)}
    keyframes = sorted(position[packet.pts] for packet in packets if packet.is_keyframe)
    groups: dict[int, list[int]] = {}
    for index in wanted:
        before = bisect_right(keyframes, index)
        if before == 0:
            return None
        groups.setdefault(keyframes[before - 1], []).append(index)
    cost = sum(group[-1] - keyframe + 1 + _SEEK_COST_FRAMES for keyframe, group in groups.items())
    if cost > wanted[-1]:
        return None
    return [Run(pts[keyframe], tuple(pts[index] for index in group)) for keyframe, group in groups.items()]
