"""The process groups of a run. Only this file creates them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trimtab.errors import SettingsError


@dataclass(frozen=True, eq=False, kw_only=True)
class Ranks:
    """The place of this process among the ranks of a run.

    Attributes:
        rank, size: of the run.
        device: where this rank computes.
        mesh: one-dimensional, for FSDP.
        data: group that moves tensors on ``device``.
        control: gloo group for small CPU messages.
    """

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh
    data: dist.ProcessGroup
    control: dist.ProcessGroup

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0


def join(*, timeout_s: float) -> Ranks:
    """Join the ranks that torchrun (or ``trimtab train`` itself) started: NCCL on CUDA devices, else gloo.

    Raises:
        SettingsError: the process was not started as a rank, or there are more ranks on a node than devices.
    """
    if "RANK" not in os.environ:
        raise SettingsError("this process is not a rank; start it with torchrun or through `trimtab train`")
    device = _device()
    dist.init_process_group(
        backend="cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    return ranks_of_default_group(device, timeout_s=timeout_s)


def ranks_of_default_group(device: torch.device, *, timeout_s: float) -> Ranks:
    """The same, over a default process group that exists already."""
    world = dist.group.WORLD
    assert world is not None
    mesh = init_device_mesh(device.type, (world.size(),), mesh_dim_names=("data",))
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    return Ranks(rank=world.rank(), size=world.size(), device=device, mesh=mesh, data=mesh.get_group(), control=control)


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local, devices = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= devices:
        raise SettingsError(f"local rank {local} has no device: this node has {devices}; start at most {devices} ranks")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)
