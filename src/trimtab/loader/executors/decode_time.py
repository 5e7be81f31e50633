"""How long decoding is likely to take, from metadata: good enough to start long items first and level processes.

Coefficients are those of one core (Pillow and PyAV without hardware): about 20 ns a pixel decoded, of an image or of
each frame up to the last one wanted, and 4 ns a value written.
"""

from __future__ import annotations

from trimtab.loader.executors.decode_task import DecodeTask

_ITEM_MS = 1.0
_MS_PER_PIXEL = 20e-6
_MS_PER_VALUE = 4e-6


def predicted_decode_ms(task: DecodeTask) -> float:
    """Milliseconds on one core."""
    visual, geometry = task.visual, task.geometry
    source_pixels = (visual.width or visual.grid_w * geometry.patch_size) * (
        visual.height or visual.grid_h * geometry.patch_size
    )
    frames = (visual.frames or 1) * task.frame_stop / visual.grid_t
    return _ITEM_MS + _MS_PER_PIXEL * source_pixels * frames + _MS_PER_VALUE * task.shape[0] * task.shape[1]
