"""Memory of who schedules a step of 100 and of 1,000 videos: a controller with pixels, and one with metadata only."""

from __future__ import annotations

import json
import pickle
import threading
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from harness import Case, Check, Report
from on_ranks import OnRanks
from trimtab.demo.run import DemoOptions, prepare, training_settings
from trimtab.demo.settings import DatasetSettings, DemoSettings
from trimtab.loader.proxy_loader import ProxyDataLoader
from trimtab.loader.settings import LoaderSettings
from trimtab.runtime.groups import Ranks
from trimtab.schema.table_file import read_table
from trimtab.training.job import build_job
from trimtab.training.launch import launch
from trimtab.training.settings import BalanceSettings, EvalSettings, SFTSettings

VIDEOS, QUICK_VIDEOS = (100, 1000), (20, 60)
MOST_BYTES_A_SAMPLE = 2048
_SAMPLE_S = 0.01


@dataclass(frozen=True, kw_only=True)
class OneStep(OnRanks[SFTSettings]):
    """A single step of a loader mode, whose rank 0 writes its largest memory to ``out``."""

    out: Path


class PeakMemory:
    """Watches this process's resident memory in a thread."""

    def __init__(self) -> None:
        self._own, self._done = psutil.Process(), threading.Event()
        self._start: int = self._own.memory_info().rss
        self.peak: int = self._start
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLE_S):
            self.peak = max(self.peak, self._own.memory_info().rss)

    def end(self) -> int:
        """Bytes above the start, at most."""
        self._done.set()
        self._thread.join()
        return self.peak - self._start


def load_one_step(step: OneStep, ranks: Ranks) -> bool:
    """Load a step on one rank, from fresh processes, and train nothing."""
    job = build_job(step.settings, ranks)
    memory = PeakMemory()
    loader = job.open_loader(last_step=1)
    loader.next()
    grown = memory.end()
    if ranks.is_first:
        step.out.write_text(json.dumps(grown))
    loader.close()
    job.close()
    return True


def measure_memory(folder: Path, ranks: int, report: Report, *, quick: bool) -> None:
    """Add both controllers' memory, and its growth a video."""
    counts = QUICK_VIDEOS if quick else VIDEOS
    settings = settings_of(folder, ranks, counts[-1])
    central = [grown_by(settings, folder, count) for count in counts]
    metadata = [controller_bytes(settings.table, count) for count in counts]
    for count, pixels, (held, pickled) in zip(counts, central, metadata, strict=True):
        case = f"controller's memory, step of {count} videos"
        report.cases.append(Case.of(case, "central: rank 0 above its start", "MiB", [pixels / (1 << 20)]))
        report.cases.append(Case.of(case, "ProxyDataLoader and its batch", "MiB", [held / (1 << 20)]))
        report.cases.append(Case.of(f"{case}, sent on", "ProxyBatch, pickled, a sample", "bytes", [pickled / count]))
        check = Check.below(f"controller's bytes a sample, {count} videos", held / count, MOST_BYTES_A_SAMPLE)
        report.checks.append(check)
    more = counts[-1] - counts[0]
    for variant, grown in (
        ("central: rank 0", central[-1] - central[0]),
        ("ProxyDataLoader and its batch", metadata[-1][0] - metadata[0][0]),
    ):
        report.cases.append(Case.of("controller's memory a further video", variant, "bytes", [grown / more]))


def settings_of(folder: Path, ranks: int, samples: int) -> SFTSettings:
    """Of a run on videos alone; ten samples ask about each."""
    videos = DatasetSettings(shares={"clip_colour": 1.0, "direction": 1.0}, clips_per_sample=0.1)
    demo = DemoSettings(train=samples, held_out=10, dataset=videos)
    options = DemoOptions(runs=folder / "memory", ranks=ranks, settings=demo)
    return replace(
        training_settings(options, *prepare(options)),
        loader=LoaderSettings(mode="central", prefetch=1),
        balance=BalanceSettings(costs="analytic"),
        evaluation=EvalSettings(),
    )


def grown_by(settings: SFTSettings, folder: Path, videos: int) -> int:
    """Bytes rank 0 grows by when it decodes a step of so many videos for all ranks."""
    out = folder / f"central-{videos}.json"
    launch(load_one_step, OneStep(settings=replace(settings, samples_per_step=videos), out=out))
    return int(json.loads(out.read_text()))


def controller_bytes(table: Path, videos: int) -> tuple[int, int]:
    """Bytes of a loader over ``videos`` samples with its batch of all, and of that batch pickled."""
    whole = read_table(table)
    tracemalloc.start()
    loader = ProxyDataLoader(whole, batch_size=videos)
    batch = next(iter(loader))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held, len(pickle.dumps(batch))
