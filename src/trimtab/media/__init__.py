"""Images and videos: sizes from file headers, decoding, and patches in the processors' order. No torch."""

from trimtab.media.decode import decode_frames, decode_image
from trimtab.media.patches import blank_patches, read_patches
from trimtab.media.probe import Probe, probe_image, probe_video
from trimtab.media.visual import describe

__all__ = [
    "Probe",
    "blank_patches",
    "decode_frames",
    "decode_image",
    "describe",
    "probe_image",
    "probe_video",
    "read_patches",
]
