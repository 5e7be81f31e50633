"""How much memory a rank used at most."""

from __future__ import annotations

import resource
import sys

import torch


def take_peak_memory_bytes(device: torch.device) -> int:
    """Bytes at the peak: on a CUDA device what tensors took there since the last call, else the process's largest size.

    The latter never falls, and leaves decode workers out.
    """
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return int(peak)
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
