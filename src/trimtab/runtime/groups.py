"""The process groups of a run. Only this file creates them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trimtab.errors import InvalidPlanError, SettingsError
from trimtab.planning.sequence_groups import nodes_of
from trimtab.runtime.flight import Lane
from trimtab.schema.sequences import SequenceGroup


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


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeGroups:
    """The groups a rank shares sequences in; those of one plan are nested.

    Attributes:
        rank: of this process among the ranks that share.
        by_degree: its group of each degree above 1; none for a rank left over at that degree.
        lane: where their exchanges run.
    """

    rank: int
    by_degree: Mapping[int, dist.ProcessGroup]
    lane: Lane

    def of(self, group: SequenceGroup) -> dist.ProcessGroup:
        """The process group of a sequence group.

        Raises:
            InvalidPlanError: this rank has no such group.
        """
        found = self.by_degree.get(group.degree)
        if found is None or self.rank not in group.ranks or found.rank() != self.rank - group.first_rank:
            raise InvalidPlanError(
                f"sample {group.rows[0]}: rank {self.rank} has no group of {group.degree} ranks that begins at rank "
                f"{group.first_rank}; it has groups of {sorted(self.by_degree)} ranks"
            )
        return found


def node_groups(
    degrees: Iterable[int], parent: dist.ProcessGroup, device: torch.device, *, timeout_s: float, overlap: bool = True
) -> NodeGroups:
    """Make the groups of every degree and exchange a value in each; a collective of ``parent``.

    Connections and communicators exist then, and are not made in the middle of a step by some ranks alone.

    Args:
        degrees: of the nodes, each of consecutive ranks of ``parent``.
        parent: all ranks.
        device: of the tensors exchanged.
        timeout_s: longest wait for another rank.
        overlap: see ``Lane``.
    """
    global_ranks, rank = dist.get_process_group_ranks(parent), parent.rank()
    by_degree = {}
    for degree in sorted(set(degrees) - {1}, reverse=True):
        for node in nodes_of(parent.size(), degree):
            made = dist.new_group([global_ranks[member] for member in node], timeout=timedelta(seconds=timeout_s))
            if rank in node:
                assert isinstance(made, dist.ProcessGroup)
                by_degree[degree] = made
    for degree, group in by_degree.items():
        sent = torch.ones(degree, device=device)
        dist.all_to_all_single(torch.empty_like(sent), sent, group=group)
    return NodeGroups(rank=rank, by_degree=by_degree, lane=Lane(device, overlap=overlap))


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local, devices = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= devices:
        raise SettingsError(f"local rank {local} has no device: this node has {devices}; start at most {devices} ranks")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)
