"""Loading three ways on the same files: one controller, a machine's shared decode processes, Ray.

    python benchmarks/loading.py [--quick] [--json] [--ranks 2]

Training is replaced by an idle wait of stated length, since a GPU leaves the CPU free. All ways have the same decode
processes, cache and prefetch depth; only the tensors' path differs. "whole visuals" is ``local`` without slices:
each rank is sent all of every visual it encodes a part of.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from harness import Case, Check, Report
from trimtab.demo.run import DemoOptions, prepare, training_settings
from trimtab.demo.settings import DemoSettings
from trimtab.loader.executors.protocol import DecodedMedia, MediaExecutor, MediaLease, Transport
from trimtab.loader.settings import LoaderSettings
from trimtab.runtime.groups import Ranks
from trimtab.training.job import Job, build_job, reopen_job
from trimtab.training.launch import launch
from trimtab.training.settings import SFTSettings

CACHE_MB = 64
"""Too little for the dataset, so that files are decoded in every step as they are in a long run."""


@dataclass(frozen=True, kw_only=True)
class Turns:
    """What the ranks run: every variant at every wait over the next ``steps`` steps, results to ``out``."""

    settings: SFTSettings
    variants: tuple[str, ...]
    waits_s: tuple[float, ...]
    steps: int
    out: Path

    @property
    def ranks(self) -> int | None:
        """Ranks to start."""
        return self.settings.ranks

    @property
    def timeout_s(self) -> float:
        """Longest wait for another rank."""
        return self.settings.timeout_s


class WholeVisuals:
    """Another executor without slice awareness: all of a visual travels, the part is cut on arrival."""

    def __init__(self, executor: MediaExecutor) -> None:
        self._executor, self.sharers = executor, executor.sharers

    def request(self, request: Any) -> MediaLease:
        """Ask for all of the run the request is a part of."""
        task = request.task
        whole = replace(request, frame_start=task.frame_start, frame_stop=task.frame_stop)
        lease = self._executor.request(whole)
        answer: Future[DecodedMedia] = Future()
        first, last = request.rows_in(task)

        def cut(arrived: Future[DecodedMedia]) -> None:
            if error := arrived.exception():
                answer.set_exception(error)
            else:
                answer.set_result(DecodedMedia(arrived.result().patches[first:last], arrived.result().decoded))

        lease.answer.add_done_callback(cut)
        return MediaLease(request, answer, lease.release)

    def transport(self) -> Transport:
        """What was carried."""
        return self._executor.transport()

    def close(self) -> None:
        """End it."""
        self._executor.close()


def take_turns(turns: Turns, ranks: Ranks) -> bool:
    """Run on one rank, which writes a JSON line for every variant and wait."""
    job = build_job(turns.settings, ranks)
    first = 0
    for wait_s in turns.waits_s:
        for name in turns.variants:
            mode = "central" if name == "central" else "shadow"
            executor = "ray" if name == "ray" else "local"
            loader = LoaderSettings(mode=mode, executor=executor, cache_mb=CACHE_MB)  # type: ignore[arg-type]
            opened = reopen_job(job, replace(turns.settings, loader=loader))
            if name == "whole visuals" and opened.executor is not None:
                opened.executor = WholeVisuals(opened.executor)
            row = run_steps(opened, first, turns.steps, wait_s)
            row |= {"variant": name, "wait_s": wait_s, "rank": ranks.rank}
            with (turns.out / f"{ranks.rank}.jsonl").open("a") as lines:
                lines.write(json.dumps(row) + "\n")
        first += turns.steps
    job.close()
    return True


def run_steps(job: Job, first: int, steps: int, wait_s: float) -> dict[str, Any]:
    """Load the steps ``first`` and following, waiting in place of training.

    The first of them, which fills the pipeline, is left out of the exposed times.
    """
    job.sampler.consumed(first - 1)
    loader = job.open_loader(last_step=first + steps)
    exposed, used, shipped, decoded, peak = [], 0, 0, 0, 0
    own = psutil.Process()
    before = own.memory_info().rss
    cpu = _cpu_seconds(own)
    try:
        for _ in range(steps):
            loaded = loader.next()
            peak = max(peak, own.memory_info().rss - before)
            exposed.append(loaded.wait_ms)
            used += sum(pack.pixel_values.nbytes for pack in loaded.packs if pack.visual_route is not None)
            shipped += loaded.received_bytes
            decoded += loaded.decoded
            job.sampler.consumed(loaded.planned.step)
            time.sleep(wait_s)
        cpu = _cpu_seconds(own) - cpu
        moved = job.executor.transport().moved_bytes if job.executor else 0
    finally:
        loader.close()
        job.close()
    return {
        "exposed_ms": exposed[1:],
        "used_bytes": used,
        "moved_bytes": shipped + (0 if job.settings.loader.mode == "central" else moved),
        "decoded": decoded,
        "peak_bytes": peak,
        "cpu_s": cpu,
    }


def _cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process and all it started that still run."""
    total = 0.0
    for member in [process, *process.children(recursive=True)]:
        try:
            times = member.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def main() -> int:
    """Prepare the demo's data, let the variants take turns, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one wait, few steps; writes no file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    has_ray = importlib.util.find_spec("ray") is not None
    variants = ("central", "local", "whole visuals", *(("ray",) if has_ray and not args.quick else ()))
    waits_s = (0.5,) if args.quick else (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
    with tempfile.TemporaryDirectory() as folder:
        data = replace(DemoSettings(), train=120, held_out=20) if args.quick else DemoSettings()
        options = DemoOptions(runs=Path(folder), ranks=args.ranks, settings=data)
        settings = training_settings(options, *prepare(options))
        turns = Turns(
            settings=settings, variants=variants, waits_s=waits_s, steps=4 if args.quick else 12, out=Path(folder)
        )
        if launch(take_turns, turns) != 0:
            print("stopped", file=sys.stderr)
            return 1
        rows = [
            json.loads(line)
            for rank in range(args.ranks)
            for line in (Path(folder) / f"{rank}.jsonl").read_text().splitlines()
        ]
    return report_of(rows, variants, waits_s, quick=args.quick).finish(as_json=args.json)


def report_of(
    rows: list[dict[str, Any]], variants: tuple[str, ...], waits_s: tuple[float, ...], *, quick: bool
) -> Report:
    """Exposed time of every variant and wait; bytes, decodes, memory and CPU over all of them."""
    report = Report(name="loading", quick=quick)
    for variant in variants:
        own = [row for row in rows if row["variant"] == variant]
        for wait_s in waits_s:
            ranks = [row["exposed_ms"] for row in own if row["wait_s"] == wait_s]
            slowest = [max(times) for times in zip(*ranks, strict=True)]
            report.cases.append(Case.of(f"exposed data time, step of {wait_s * 1e3:.0f} ms", variant, "ms", slowest))
        for what, key, scale, unit in (
            ("moved / used bytes", "moved_bytes", sum(row["used_bytes"] for row in own), "ratio"),
            ("rank 0's memory above its start", "peak_bytes", 1 << 20, "MiB"),
            ("CPU of ranks and decode processes", "cpu_s", 1.0, "s"),
            ("runs decoded", "decoded", 1.0, ""),
        ):
            values = [row[key] / scale for row in own if key != "peak_bytes" or row["rank"] == 0]
            total = [max(values)] if key == "peak_bytes" else [sum(values)]
            report.cases.append(Case.of(what, variant, unit, total))
        if variant in ("local", "ray"):
            ratio = sum(row["moved_bytes"] for row in own) / sum(row["used_bytes"] for row in own)
            report.checks.append(Check.below(f"{variant}: |moved / used bytes - 1|", abs(ratio - 1), 0.0))
            longest = [row["exposed_ms"] for row in own if row["wait_s"] == waits_s[-1]]
            share = median(max(times) for times in zip(*longest, strict=True)) / (waits_s[-1] * 1e3)
            report.checks.append(Check.below(f"{variant}: exposed time / longest step, median", share, 0.05))
    return report


if __name__ == "__main__":
    sys.exit(main())
