"""What happened when: spans on named lanes, and the Chrome trace format that Perfetto opens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MICRO = 1e6

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something a lane was busy with.

    Attributes:
        group: "steps" (lane 0 steps, 1 their phases), "ranks", "engines", "decode workers", "links" or "hosts".
        lane: within the group.
        name: what it did.
        start, seconds: on the simulation's clock.
    """

    group: str
    lane: int
    name: str
    start: float
    seconds: float


class Timeline:
    """Collects the spans of one strategy's run."""

    def __init__(self) -> None:
        """No span yet."""
        self.spans: list[Span] = []

    def add(self, group: str, lane: int, name: str, start: float, seconds: float) -> None:
        """Add a span; those of no length are left out."""
        if seconds > 0:
            self.spans.append(Span(group=group, lane=lane, name=name, start=start, seconds=seconds))

    def add_lanes(self, group: str, name: str, start: float | Floats, seconds: Floats) -> None:
        """Add one span on each of the lanes 0, 1, ... of a group."""
        starts = np.broadcast_to(np.asarray(start, dtype=np.float64), seconds.shape)
        for lane, (begin, length) in enumerate(zip(starts.tolist(), seconds.tolist(), strict=True)):
            self.add(group, lane, name, begin, length)


def chrome_trace(timelines: Iterable[tuple[str, Timeline]]) -> dict[str, Any]:
    """The trace of several strategies, each group of lanes of a strategy as one process of the trace.

    Format: Trace Event Format, complete events ("X"), microseconds.
    """
    events: list[dict[str, Any]] = []
    process = 0
    for strategy, timeline in timelines:
        groups = dict.fromkeys(span.group for span in timeline.spans)
        ids = {group: process + index + 1 for index, group in enumerate(groups)}
        process += len(groups)
        for group, pid in ids.items():
            events.append(
                {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": f"{strategy}: {group}"}}
            )
            events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
        lanes = dict.fromkeys((span.group, span.lane) for span in timeline.spans)
        events += [
            {"ph": "M", "name": "thread_name", "pid": ids[group], "tid": lane, "args": {"name": f"{group} {lane}"}}
            for group, lane in lanes
        ]
        events += [
            {
                "ph": "X",
                "name": span.name,
                "cat": span.group,
                "pid": ids[span.group],
                "tid": span.lane,
                "ts": round(span.start * _MICRO, 3),
                # from rounded ends, or spans that touch would overlap by a nanosecond
                "dur": round(round((span.start + span.seconds) * _MICRO, 3) - round(span.start * _MICRO, 3), 3),
            }
            for span in timeline.spans
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"simulated": True}}
