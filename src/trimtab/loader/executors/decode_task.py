"""What is asked of a decode process, and by a rank."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.metadata import Visual

Patches = NDArray[np.float32]
"""float32 [patches, patch_values], read-only where several processes share it."""


@dataclass(frozen=True, kw_only=True)
class DecodeTask:
    """Temporal patches ``frame_start:frame_stop`` of a visual.

    Attributes:
        visual: the image or video and its planned grid.
        geometry: how the model's processor sizes and cuts it.
        frame_start, frame_stop: run of temporal patches.
        data: the encoded file where the dataset carries it, else None.
    """

    visual: Visual
    geometry: VisionGeometry
    frame_start: int
    frame_stop: int
    data: bytes | None = None

    @property
    def key(self) -> Hashable:
        """Equal for tasks that read the same visual in the same way, whichever run of it."""
        visual = self.visual
        return (visual.kind, visual.source, visual.grid_t, visual.grid_h, visual.grid_w, self.geometry)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the patches."""
        return self.rows_per_frame * (self.frame_stop - self.frame_start), self.geometry.patch_values

    @property
    def rows_per_frame(self) -> int:
        """Patches of one temporal patch."""
        return self.visual.grid_h * self.visual.grid_w

    @property
    def nbytes(self) -> int:
        """Bytes of the patches."""
        return self.shape[0] * self.shape[1] * np.dtype(np.float32).itemsize

    def covers(self, other: DecodeTask) -> bool:
        """Whether the other task, of the same key, needs nothing this one does not decode."""
        return self.frame_start <= other.frame_start and other.frame_stop <= self.frame_stop


@dataclass(frozen=True, kw_only=True)
class MediaRequest:
    """What one rank needs.

    Attributes:
        task: the run all ranks that share decode processes need together, decoded once.
        frame_start, frame_stop: the part of it this rank needs.
        step: the step that needs it; earlier steps are served first.
    """

    task: DecodeTask
    frame_start: int
    frame_stop: int
    step: int

    def rows_in(self, held: DecodeTask) -> tuple[int, int]:
        """First and last-plus-one patch row of the needed part within a run that covers it."""
        rows = self.task.rows_per_frame
        return (self.frame_start - held.frame_start) * rows, (self.frame_stop - held.frame_start) * rows
