"""Ranks on a CPU, to test code that uses ``torch.distributed`` without a GPU or a launcher.

Two ways to get ranks:

- `RankPool`: one process a rank over gloo, kept between runs. Each run gets a fresh world, so FSDP2, device meshes and
  sub-groups work as under ``torchrun``. A hung or killed rank ends the run within its time limit.
- `run_threads`: one thread a rank, each with its own gloo group. Sixteen ranks cost a fraction of a second, but there
  is no default process group, and threads share one interpreter and one random generator. For tests of collectives.

Example:
    >>> import torch
    >>> import torch.distributed as dist
    >>> def total(group: dist.ProcessGroup) -> float:
    ...     value = torch.tensor([float(group.rank())])
    ...     dist.all_reduce(value, group=group)
    ...     return value.item()
    >>> run_threads(4, total)
    [6.0, 6.0, 6.0, 6.0]
"""

from trimtab.testing.outcomes import RankLostError
from trimtab.testing.pool import DEFAULT_PRELOAD, RankPool
from trimtab.testing.threads import run_threads

__all__ = ["DEFAULT_PRELOAD", "RankLostError", "RankPool", "run_threads"]
