"""What the side stream is worth on CUDA devices: attention of mixed degrees with and without overlap, and its numerics.

    torchrun --nproc-per-node=N benchmarks/gpu_overlap.py [--quick] [--json]

One layer's attention, forward and backward, over sequence groups of degree N and whole sequences: exchanges awaited
where they start, exchanges beside the attention, and the same without any exchange. Numerics: bf16 outputs and
gradients of the sharded attention against the same sequences on one device in float64.
Without CUDA it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness import Case, Check, Report
from trimtab.runtime.flight import Lane
from trimtab.runtime.groups import NodeGroups
from trimtab.runtime.ulysses import ShardedSequences, sharded_attention
from trimtab.runtime.varlen import varlen_attention
from trimtab.schema.sequences import SequenceGroup

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
Rows = tuple[Tensor, Tensor, Tensor]


def main() -> int:
    """Measure on this rank; rank 0 reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few small rounds; writes no file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    report = Report(name="gpu_overlap", quick=True)
    if not torch.cuda.is_available():
        report.notes.append("no CUDA device here: overlap and half-precision numerics were not measured")
        return report.finish(as_json=args.json)
    if "RANK" not in os.environ:
        parser.error("start it with torchrun, one process a device")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=120), device_id=device)
    report.quick = args.quick or dist.get_rank() > 0  # rank 0 alone writes
    measure(report, device, rounds=3 if args.quick else 15, tokens=4096 if args.quick else 32768)
    code = report.finish(as_json=args.json) if dist.get_rank() == 0 else 0
    dist.destroy_process_group()
    return code


def measure(report: Report, device: torch.device, *, rounds: int, tokens: int) -> None:
    """Add cases and checks; a collective of all ranks."""
    world = dist.group.WORLD
    assert world is not None
    ranks, rank = world.size(), world.rank()
    groups = tuple(
        SequenceGroup(degree=ranks, first_rank=0, rows=(row,), lengths=(tokens // (row + 1),)) for row in range(4)
    )
    whole = (tokens // 4, tokens // 8)
    mine = rows_of(sum(group.shares[rank] for group in groups) + sum(whole), device, seed=rank)
    variants = {}
    for name, overlap in (("awaited", False), ("overlapped", True)):
        nodes = NodeGroups(rank=rank, by_degree={ranks: world}, lane=Lane(device, overlap=overlap))
        variants[name] = ShardedSequences(groups, nodes)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds + 2):
        for name, sharded in variants.items():
            times[name].append(milliseconds(partial(backward, mine, sharded, whole), device))
    case = f"{ranks} devices, {torch.cuda.get_device_name(device)}, longest {tokens} tokens"
    for name, values in times.items():
        report.cases.append(Case.of(case, name, "ms", values[2:]))
    ratios = [own / other for own, other in zip(times["overlapped"][2:], times["awaited"][2:], strict=True)]
    report.cases.append(Case.of(case, "overlapped / awaited, paired", "ratio", ratios))
    report.checks.append(Check.below(f"{case}: overlapped / awaited, paired median", median(ratios), 1.02, timed=True))
    report.checks.append(Check.below(f"{case}: bf16 against float64, relative", numerics(variants["overlapped"]), 2e-2))


def rows_of(tokens: int, device: torch.device, *, seed: int) -> Rows:
    """Random query, key and value."""
    draw = torch.Generator(device).manual_seed(seed)
    query, key, value = (
        torch.randn(tokens, heads, HEAD_DIM, generator=draw, device=device, dtype=torch.bfloat16).requires_grad_()
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    return query, key, value


def backward(rows: Rows, sharded: ShardedSequences, whole: tuple[int, ...]) -> None:
    """Forward and backward of one layer's attention."""
    query, key, value = rows
    total: Any = sharded_attention(query, key, value, sharded, whole).sum()
    total.backward()


def milliseconds(work: Callable[[], None], device: torch.device) -> float:
    """Time of ``work()`` on the device."""
    torch.cuda.synchronize(device)
    dist.barrier()
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    start.record()
    work()
    end.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(end))


def numerics(sharded: ShardedSequences) -> float:
    """Largest relative error of a small group's outputs and gradients on this rank."""
    nodes = sharded.nodes
    ranks = len(sharded.groups[0].ranks)
    group = SequenceGroup(degree=ranks, first_rank=0, rows=(0, 1), lengths=(333, 1))
    device = torch.device("cuda", torch.cuda.current_device())
    full = rows_of(group.tokens, device, seed=99)
    exact = [part.detach().double().requires_grad_() for part in full]
    expected: Any = varlen_attention(exact[0], exact[1], exact[2], group.lengths)
    expected.square().sum().backward()
    begin, end = group.cuts[nodes.rank : nodes.rank + 2]
    own = [part.detach()[begin:end].requires_grad_() for part in full]
    found: Any = sharded_attention(own[0], own[1], own[2], ShardedSequences((group,), nodes), ())
    found.square().sum().backward()
    pairs = [(found, expected), *((mine.grad, whole.grad) for mine, whole in zip(own, exact, strict=True))]
    errors = []
    for mine, whole in pairs:
        assert mine is not None
        assert whole is not None
        errors.append(float((mine.double() - whole[begin:end]).abs().max() / whole.abs().max()))
    return max(errors)


if __name__ == "__main__":
    raise SystemExit(main())
