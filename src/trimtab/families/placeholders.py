"""How a video's placeholder expands in the text."""

from __future__ import annotations

from collections.abc import Sequence


def one_run(seconds: Sequence[float], tokens: int) -> list[str | int]:
    """All temporal patches in one run of video tokens (Qwen2-VL, Qwen2.5-VL)."""
    return [len(seconds) * tokens]


def timestamped_runs(seconds: Sequence[float], tokens: int) -> list[str | int]:
    """A timestamp before each temporal patch, each wrapped in vision start and end (Qwen3-VL)."""
    pieces: list[str | int] = []
    for second in seconds:
        pieces += [f"<{second:.1f} seconds><|vision_start|>", tokens, "<|vision_end|>"]
    return pieces
