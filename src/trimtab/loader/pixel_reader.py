"""Loads what a placeholder of pixels stands for: just those frames, and of them just those rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from trimtab.errors import MetadataError
from trimtab.loader.executors.decode_task import MediaRequest, Patches
from trimtab.loader.executors.protocol import MediaExecutor, MediaLease, hurry_all, release_when_dropped
from trimtab.loader.media_reader import MediaReader
from trimtab.loader.placeholder import Placeholder
from trimtab.loader.proxy_batch import PIXELS


@dataclass(frozen=True, eq=False, kw_only=True)
class PendingPixels:
    """Pixels that were asked for; what is decoded for them is held until ``get``, ``release`` or nobody refers to them.

    As a context manager it releases them at its end.

    Attributes:
        placeholder: what they are.
        leases: requests, one for each visual of each piece.
        cuts: (first, last) row of each answer that is wanted: a piece may begin or end within a frame.
    """

    placeholder: Placeholder
    leases: tuple[MediaLease, ...]
    cuts: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        release_when_dropped(self, self.leases)

    def __enter__(self) -> PendingPixels:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """They are no longer wanted; may be called again, and after ``get``."""
        for lease in self.leases:
            lease.release()


class PixelReader:
    """``request`` a placeholder, later ``get`` its tensor.

    What several replies or slices need of one visual is decoded once, and travels once to each rank that asks.
    """

    def __init__(self, media: MediaReader, executor: MediaExecutor) -> None:
        """Read the samples of ``media`` through ``executor``."""
        self._media, self._executor = media, executor

    def request(self, placeholder: Placeholder, *, step: int) -> PendingPixels:
        """Ask for pixels; does not block.

        Args:
            placeholder: ``pixel_values`` of a ``ProxyBatch``, or what was made of it.
            step: earlier steps are served first.

        Raises:
            MetadataError: the placeholder is of another tensor, or of another table than this reader's.
        """
        if placeholder.name != PIXELS:
            raise MetadataError(f"{placeholder.name} is no tensor of pixels; ask for {PIXELS}")
        if placeholder.table != self._media.table.digest:
            raise MetadataError(
                f"the placeholder is of another metadata table (digest {placeholder.table}) than this reader's "
                f"({self._media.table.digest}), so its rows mean other samples; read it by its own table's reader"
            )
        parts = list(self._parts(placeholder, step))  # before anything is asked for: it may raise
        leases = [self._executor.request(request) for request, _ in parts]
        cuts = [cut for _, cut in parts]
        return PendingPixels(placeholder=placeholder, leases=tuple(leases), cuts=tuple(cuts))

    def get(self, pending: PendingPixels) -> torch.Tensor:
        """Wait; float32 of the placeholder's shape. What is waited for comes first, whatever its step.

        Raises:
            MediaError: a file cannot be decoded; names it.
            MetadataError: the placeholder describes rows its samples do not have.
            LoaderError: the executor has ended, or the pixels were released before they were there.
        """
        hurry_all(pending.leases)
        try:
            parts: list[Patches] = [np.zeros((0, *pending.placeholder.row_shape), dtype=np.float32)]
            for lease, (first, last) in zip(pending.leases, pending.cuts, strict=True):
                parts.append(lease.answer.result().patches[first:last])
            pixels = torch.from_numpy(np.concatenate(parts))
        finally:
            pending.release()
        if pixels.shape != pending.placeholder.shape:
            raise MetadataError(
                f"the placeholder describes {pending.placeholder.shape}, its samples hold {tuple(pixels.shape)}; "
                "take placeholders from a ProxyBatch"
            )
        return pixels

    def _parts(self, placeholder: Placeholder, step: int) -> Iterator[tuple[MediaRequest, tuple[int, int]]]:
        table = self._media.table
        pieces = zip(placeholder.sample.tolist(), placeholder.start.tolist(), placeholder.stop.tolist(), strict=True)
        for row, start, stop in pieces:
            begin = 0
            for index, visual in enumerate(range(*table.visual_offsets[row : row + 2].tolist())):
                frames, height, width = table.grid_thw[visual].tolist()
                per_frame, end = height * width, begin + frames * height * width
                first, last = max(start, begin) - begin, min(stop, end) - begin
                begin = end
                if first >= last:
                    continue
                wanted = first // per_frame, -(-last // per_frame)
                request = MediaRequest(
                    task=self._media.decode_task(row, index, 0, frames),
                    frame_start=wanted[0],
                    frame_stop=wanted[1],
                    step=step,
                )
                yield request, (first - wanted[0] * per_frame, last - wanted[0] * per_frame)
