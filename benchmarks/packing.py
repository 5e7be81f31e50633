"""Packs against plain batches: pad and dist ratios, packs over the lower bound, time, and what matching leaves random.

    python benchmarks/packing.py [--quick] [--json] [--lengths PATH]

Four ways to fill a step (random batches of 4, length-grouped batches of 4 as LLaVA makes them, ISF as published, and
ours, "best") at loose (18 tiles, 6016 tokens) and tight caps (9 tiles, 4096 tokens), on 8 and 32 ranks. Without
--lengths, generated mixes only. Predicted cost is InternVL-6B-20B's on an H800, loads of padded batches are padded.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace

import numpy as np

from harness import Case, Check, Report
from trimtab.cost.analytic import analytic_costs
from trimtab.cost.cluster import load_cluster
from trimtab.cost.flops import TRAIN_RECOMPUTE
from trimtab.cost.models import model_preset
from trimtab.planning.packing.epoch import pack_epoch
from trimtab.planning.packing.lower_bound import lower_bound
from trimtab.planning.packing.metrics import pad_ratio
from trimtab.planning.packing.packs import Packs
from trimtab.planning.packing.plain_batches import length_grouped_batches, random_batches
from trimtab.planning.packing.randomness import order_randomness
from trimtab.planning.packing.sample_loads import PATCHES_PER_TILE, SampleLoads
from trimtab.planning.packing.settings import PackSettings
from trimtab.planning.packing.step_matching import StepGroups
from trimtab.planning.packing.step_time import deal, deal_in_order, dist_by_load, work_per_sample
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.table_file import read_table

MODEL = "internvl-6b-20b"
RANKS = (8, 32)
BATCH = 4
MANY = 1_200_000
MANY_QUICK = 100_000
WINDOWS = (1, 4, 16, 64, 256)
LIMIT_BOUND, LIMIT_DIST, LIMIT_SECONDS = 1.01, 0.01, 20.0


@dataclass(frozen=True, kw_only=True)
class Caps:
    """Limits of a pack, and the window at which ranks must be even."""

    name: str
    tiles: int
    tokens: int
    window: int

    def __str__(self) -> str:
        return f"{self.name} {self.tiles}/{self.tokens}"


CAPS = (
    Caps(name="loose", tiles=18, tokens=6016, window=16),
    Caps(name="tight", tiles=9, tokens=4096, window=64),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer samples and seeds, no result file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--lengths", metavar="PATH", help="metadata table, packed whole and repeated to 1.2 million")
    args = parser.parse_args()
    report = Report(name="packing", quick=args.quick)
    if args.lengths is None:
        report.notes.append("no --lengths: generated mixes only")
    sets = data_sets(args.lengths, quick=args.quick)
    for name, samples in sets.items():
        print(name, file=sys.stderr)
        held = name == next(iter(sets))  # promises are made for the first set; the others show what else there is
        measure_plain(report, name, samples, seeds=1 if args.quick else 3)
        for caps in CAPS:
            measure_packs(report, name, samples, caps, seeds=1 if args.quick else 3, held=held)
        if held:
            measure_windows(report, name, samples)
            measure_time(report, name, samples, MANY_QUICK if args.quick else MANY)
    return report.finish(as_json=args.json)


def data_sets(lengths: str | None, *, quick: bool) -> dict[str, SampleLoads]:
    """Loads of the given table, if any, and of generated mixes."""
    count = 20_000 if quick else 40_000
    generated = {
        "charts and diagrams": (np.array([0, 0.21, 0, 0.16, 0.02, 0.61]), 5.0, 0.6),
        "half text": (np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1]), 6.3, 0.8),
        "documents, several images": (np.array([0.1, 0.1, 0.1, 0.2, 0.2, 0.1, 0.1, 0.1]), 5.5, 1.0),
    }
    sets = {} if lengths is None else {"lengths": loads_of(read_table(lengths).batch())}
    for seed, (name, (tiles, mean, deviation)) in enumerate(generated.items()):
        rng = np.random.default_rng(seed)
        text = np.clip(rng.lognormal(mean, deviation, count), 10, 3000).astype(np.int64)
        sets[name] = loads_of(flat_batch(rng.choice(len(tiles), p=tiles, size=count), text))
    return sets


def flat_batch(tiles: np.ndarray, text: np.ndarray) -> BatchMetadata:
    """Samples of ``tiles`` images of 32x32 patches and ``text`` tokens."""
    visuals = int(tiles.sum())
    return BatchMetadata(
        sample_ids=tuple(map(str, range(len(tiles)))),
        text_tokens=text,
        loss_tokens=text,
        loss_weight=np.ones(len(tiles)),
        visual_offsets=np.concatenate([[0], np.cumsum(tiles)]).astype(np.int64),
        grid_thw=np.tile(np.array([1, 32, 32]), (visuals, 1)),
        is_video=np.zeros(visuals, dtype=np.bool_),
        visual_keys=np.arange(visuals),
        merge_size=2,
    )


def loads_of(batch: BatchMetadata) -> SampleLoads:
    costs = analytic_costs(
        batch,
        model_preset(MODEL),
        load_cluster("h800").device,
        language_passes=TRAIN_RECOMPUTE,
        vision_passes=TRAIN_RECOMPUTE,
    )
    return SampleLoads.from_batch(batch, costs)


def measure_plain(report: Report, name: str, samples: SampleLoads, seeds: int) -> None:
    """Batches of a fixed number of samples."""
    pads: dict[str, list[float]] = {"random": [], "length-grouped": []}
    dists: dict[tuple[str, int, str], list[float]] = {}
    work: dict[tuple[str, int], list[float]] = {}
    for seed in range(seeds):
        for ranks in RANKS:
            rng = np.random.default_rng(seed)
            variants = {
                "random": random_batches(len(samples), BATCH, rng),
                "length-grouped": length_grouped_batches(samples.tokens, BATCH, ranks, rng),
            }
            for variant, batches in variants.items():
                loads, groups = samples.of_padded(batches), deal_in_order(len(batches), ranks)
                pads[variant].append(pad_ratio(batches, samples.tokens))
                work.setdefault((variant, ranks), []).append(work_per_sample(loads, groups, batches.counts))
                for load, ratio in dist_by_load(loads, groups).items():
                    dists.setdefault((variant, ranks, load), []).append(ratio or 0.0)
    for variant, values in pads.items():
        report.cases.append(Case.of(f"{name}, pad ratio", variant, "ratio", values))
    for (variant, ranks, load), values in dists.items():
        report.cases.append(Case.of(f"{name}, dist ratio, DP {ranks}, {load}", variant, "ratio", values))
    for (variant, ranks), values in work.items():
        case = f"{name}, predicted time a sample, DP {ranks}"
        report.cases.append(Case.of(case, variant, "rank-ms", [value * ranks * 1e-6 for value in values]))


def measure_packs(report: Report, name: str, samples: SampleLoads, caps: Caps, *, seeds: int, held: bool) -> None:
    """ISF as published, and ours with the caps' window; the limits hold for ours."""
    problem = samples.problem(patches=caps.tiles * PATCHES_PER_TILE, tokens=caps.tokens)
    fitting = problem.fitting()
    bound = lower_bound(problem.loads[:, problem.capped][fitting], problem.limits)
    if len(fitting) < len(samples):
        report.notes.append(f"{name}, {caps}: {len(samples) - len(fitting)} samples exceed a cap and are left out")
    for method in ("isf", "best"):
        settings = PackSettings(method="best" if method == "best" else "isf", window=caps.window)
        variant = method if method == "isf" else f"best, window {caps.window}"
        over, pad = [], []
        dists: dict[tuple[int, str], list[float]] = {}
        work: dict[int, list[float]] = {}
        for seed in range(seeds):
            packs = pack_epoch(problem, settings, seed=seed, epoch=0)
            loads = samples.of_packs(packs)
            over.append(len(packs) / bound)
            pad.append(pad_ratio(as_sequences(packs), loads.language))
            for ranks in RANKS:
                groups = dealt(samples, packs, ranks, settings, seed)
                work.setdefault(ranks, []).append(work_per_sample(loads, groups, packs.counts))
                for load, ratio in dist_by_load(loads, groups).items():
                    dists.setdefault((ranks, load), []).append(ratio or 0.0)
        case = f"{name}, {caps}"
        report.cases.append(Case.of(f"{case}, packs over the lower bound of {bound}", variant, "ratio", over))
        report.cases.append(Case.of(f"{case}, pad ratio", variant, "ratio", pad))
        for (ranks, load), values in dists.items():
            report.cases.append(Case.of(f"{case}, dist ratio, DP {ranks}, {load}", variant, "ratio", values))
        for ranks, values in work.items():
            times = [value * ranks * 1e-6 for value in values]
            report.cases.append(Case.of(f"{case}, predicted time a sample, DP {ranks}", variant, "rank-ms", times))
        if held and method == "best":
            report.checks.append(Check.below(f"{case}: packs over the lower bound", max(over), LIMIT_BOUND))
            report.checks.append(Check.below(f"{case}: pad ratio", max(pad), 0.0))
            for ranks in RANKS:
                what = f"{case}: language dist ratio, DP {ranks}, window {caps.window}"
                report.checks.append(Check.below(what, max(dists[ranks, "language"]), LIMIT_DIST))


def as_sequences(packs: Packs) -> Packs:
    """A pack is one sequence to its device."""
    return Packs(rows=np.arange(len(packs)), offsets=np.arange(len(packs) + 1))


def dealt(samples: SampleLoads, packs: Packs, ranks: int, settings: PackSettings, seed: int) -> StepGroups:
    return deal(samples.of_packs(packs), ranks, settings, np.random.default_rng([seed, ranks]))


def measure_windows(report: Report, name: str, samples: SampleLoads) -> None:
    """Evenness bought with randomness, window by window, on 8 ranks."""
    caps = CAPS[0]
    problem = samples.problem(patches=caps.tiles * PATCHES_PER_TILE, tokens=caps.tokens)
    packs = pack_epoch(problem, PackSettings(), seed=0, epoch=0)
    tokens = packs.sums(samples.tokens)
    for window in WINDOWS:
        groups = dealt(samples, packs, RANKS[0], replace(PackSettings(), window=window), seed=0)
        left = order_randomness(groups, tokens)
        dist = dist_by_load(samples.of_packs(packs), groups)["language"] or 0.0
        figures = {
            "language dist ratio": dist,
            "correlation of step and tokens": left.correlation,
            "spread of steps' mean tokens over random": left.spread,
            "displacement, share of the epoch": left.displacement,
        }
        for figure, value in figures.items():
            report.cases.append(Case.of(f"{name}, {caps}, {figure}", f"window {window}", "ratio", [value]))


def measure_time(report: Report, name: str, samples: SampleLoads, count: int) -> None:
    """Processor seconds to pack, bound and match (DP 8 and 32) many samples: the set over and over."""
    many = samples.take(np.resize(np.arange(len(samples), dtype=np.int64), count))
    scale = MANY / count
    for caps in CAPS:
        problem = many.problem(patches=caps.tiles * PATCHES_PER_TILE, tokens=caps.tokens)
        spent = {}
        for method in ("isf", "best"):
            settings = PackSettings(method="best" if method == "best" else "isf", window=caps.window)
            wall, processor = time.perf_counter(), time.process_time()
            packs = pack_epoch(problem, settings, seed=0, epoch=0)
            lower_bound(problem.loads[:, problem.capped][problem.fitting()], problem.limits)
            for ranks in RANKS:
                dealt(many, packs, ranks, settings, seed=0)
            spent[method] = time.process_time() - processor
            case = f"{name} as {count:,} samples, {caps}"
            report.cases.append(Case.of(f"{case}, processor time", method, "s", [spent[method]]))
            report.cases.append(Case.of(f"{case}, wall time", method, "s", [time.perf_counter() - wall]))
        what = f"{name}, {caps}: processor seconds for 1.2 million samples"
        if count != MANY:
            what += f", from {count:,}"
        report.checks.append(Check.below(what, spent["best"] * scale, LIMIT_SECONDS))


if __name__ == "__main__":
    sys.exit(main())
