"""Loading three ways on the same files: one controller, a machine's shared decode processes, Ray.

    python benchmarks/loading.py [--quick] [--json] [--ranks 2] [--plot FILE.html]

Training is replaced by an idle wait of stated length, since a GPU leaves the CPU free. All ways have the same decode
processes, cache and prefetch depth; only the tensors' path differs. "whole visuals" is ``local`` without slices:
each rank is sent all of every visual it encodes a part of. What the controller of a step holds is measured apart, on
videos (``loading_memory.py``).
"""

from __future__ import annotations

import argparse
import contextlib
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

import numpy as np
import plotly.graph_objects as go
import psutil
from numpy.typing import NDArray

from harness import Case, Check, Report
from loading_memory import measure_memory
from on_ranks import OnRanks
from trimtab.demo.run import DemoOptions, prepare, training_settings
from trimtab.demo.settings import DemoSettings
from trimtab.loader.executors.protocol import DecodedMedia, MediaExecutor, MediaLease, Transport
from trimtab.loader.settings import LoaderSettings
from trimtab.runtime.groups import Ranks
from trimtab.schema.table import MetadataTable
from trimtab.training.job import Job, build_job, reopen_job
from trimtab.training.launch import launch
from trimtab.training.settings import SFTSettings

CACHE_MB = 64
"""Too little for the dataset, so that files are decoded in every step as they are in a long run."""


@dataclass(frozen=True, kw_only=True)
class Turns(OnRanks[SFTSettings]):
    """What the ranks run: every variant at every wait over the next ``steps`` steps, results to ``out``."""

    variants: tuple[str, ...]
    waits_s: tuple[float, ...]
    steps: int
    out: Path


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
        return replace(lease, request=request, answer=answer)

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
    exposed, used, shipped, decoded, files, peak = [], 0, 0, 0, 0, 0
    own = psutil.Process()
    before = own.memory_info().rss
    before_s = _cpu_seconds(own)
    try:
        for _ in range(steps):
            loaded = loader.next()
            peak = max(peak, own.memory_info().rss - before)
            exposed.append(loaded.wait_ms)
            used += sum(pack.pixel_values.nbytes for pack in loaded.packs if pack.visual_route is not None)
            shipped += loaded.received_bytes
            decoded += loaded.decoded
            files += files_of(job.reader.table, loaded.planned.rows)
            job.sampler.consumed(loaded.planned.step)
            time.sleep(wait_s)
        cpu_s = sum(spent - before_s.get(pid, 0.0) for pid, spent in _cpu_seconds(own).items())
        moved = job.executor.transport().moved_bytes if job.executor else 0
    finally:
        loader.close()
        job.close()
    return {
        "exposed_ms": exposed[1:],
        "used_bytes": used,
        "moved_bytes": shipped + (0 if job.settings.loader.mode == "central" else moved),
        "decoded": decoded,
        "files": files,
        "peak_bytes": peak,
        "cpu_s": cpu_s,
    }


def files_of(table: MetadataTable, rows: NDArray[np.int64]) -> int:
    """Distinct files some samples need."""
    spans = [range(*table.visual_offsets[row : row + 2].tolist()) for row in rows]
    return len({table.sources[index].as_py() for span in spans for index in span})


def _cpu_seconds(process: psutil.Process) -> dict[int, float]:
    """CPU time of a process and all it started, by process id."""
    found = {}
    for member in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = member.cpu_times()
            found[member.pid] = times.user + times.system
    return found


def main() -> int:
    """Prepare the demo's data, let the variants take turns, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one wait, few steps; writes no file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--plot", type=Path, metavar="FILE.html", help="draw exposed time against the step's length")
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
        report = report_of(rows, variants, waits_s, quick=args.quick)
        if "ray" not in variants:
            why = "it takes longer to start than a quick run lasts" if has_ray else "it is not installed"
            report.notes.append(f"Ray skipped: {why}")
        measure_memory(Path(folder), args.ranks, report, quick=args.quick)
    if args.plot:
        draw(rows, variants, waits_s, args.plot)
    return report.finish(as_json=args.json)


def report_of(
    rows: list[dict[str, Any]], variants: tuple[str, ...], waits_s: tuple[float, ...], *, quick: bool
) -> Report:
    """Exposed time of every variant and wait; bytes, decodes, memory and CPU over all of them."""
    report = Report(name="loading", quick=quick)
    ranks = len({row["rank"] for row in rows})
    for variant in variants:
        own = [row for row in rows if row["variant"] == variant]
        for wait_s in waits_s:
            slowest = exposed_ms(own, wait_s)
            report.cases.append(Case.of(f"exposed data time, step of {wait_s * 1e3:.0f} ms", variant, "ms", slowest))
        for what, key, scale, unit in (
            ("bytes moved between processes / used", "moved_bytes", sum(row["used_bytes"] for row in own), "ratio"),
            ("rank 0's memory above its start", "peak_bytes", 1 << 20, "MiB"),
            ("CPU of ranks and decode processes", "cpu_s", 1.0, "s"),
            ("decodes of a file in a step that needs it", "decoded", sum(row["files"] for row in own) / ranks, ""),
        ):
            values = [row[key] / scale for row in own if key != "peak_bytes" or row["rank"] == 0]
            total = [max(values)] if key == "peak_bytes" else [sum(values)]
            report.cases.append(Case.of(what, variant, unit, total))
        if variant in ("local", "ray"):
            ratio = sum(row["moved_bytes"] for row in own) / sum(row["used_bytes"] for row in own)
            report.checks.append(Check.below(f"{variant}: moved / used bytes, off 1 by", abs(ratio - 1), 0.0))
            share = median(exposed_ms(own, waits_s[-1])) / (waits_s[-1] * 1e3)
            report.checks.append(
                Check.below(f"{variant}: exposed time / longest step, median", share, 0.05, timed=True)
            )
    return report


def exposed_ms(rows: list[dict[str, Any]], wait_s: float) -> list[float]:
    """Of a variant's steps, the slowest rank's exposed time."""
    ranks = [row["exposed_ms"] for row in rows if row["wait_s"] == wait_s]
    return [max(times) for times in zip(*ranks, strict=True)]


def draw(rows: list[dict[str, Any]], variants: tuple[str, ...], waits_s: tuple[float, ...], path: Path) -> None:
    """Median exposed time of every variant against the time a step leaves for loading."""
    figure = go.Figure()
    for variant in variants:
        own = [row for row in rows if row["variant"] == variant]
        figure.add_scatter(
            x=[wait_s * 1e3 for wait_s in waits_s],
            y=[median(exposed_ms(own, wait_s)) for wait_s in waits_s],
            name=variant,
            mode="lines+markers",
        )
    figure.update_layout(
        xaxis={"title": "computing in a step, ms", "type": "log"},
        yaxis={"title": "exposed data time, ms (median)"},
        template="plotly_white",
        width=900,
        height=420,
    )
    figure.write_html(path, include_plotlyjs=True)


if __name__ == "__main__":
    sys.exit(main())
