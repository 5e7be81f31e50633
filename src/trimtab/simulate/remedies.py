"""What would make a job fit in memory where nothing does, by what overflows; what is named for sure was simulated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from trimtab.cost.memory import kept_bytes_sharded, language_bytes_per_token, parameters
from trimtab.simulate.device_memory import Overflow
from trimtab.simulate.job import Job
from trimtab.simulate.run import StrategyResult
from trimtab.simulate.strategies import SimulatedStrategy, strategy_named
from trimtab.simulate.sweep import CANNOT_BE, Overrides, Run
from trimtab.simulate.workload import is_table

_MOST_TRIED = 4
_MOST_RANKS = 65_536
_GB = 1e9


def remedy(job: Job, result: StrategyResult, run: Run) -> str:
    """What overflows, and what makes it fit; or, where nothing tried does, what may.

    Args:
        job: the nearest to fitting.
        result: simulated of it.
        run: simulates it with some settings changed.
    """
    scenario = job.scenario
    strategy = strategy_named(result.name, scenario.task, scenario.sync)
    worst = max(result.out_of_memory, key=lambda each: each.needed_gb / each.limit_gb)
    said = _what(job, strategy, worst)
    tried: list[str] = []
    for changed in _changes(job, strategy, worst):
        if len(tried) == _MOST_TRIED:
            break
        named = " ".join(f"{name}={value}" for name, value in changed.items())
        if "tensor_parallel" in changed:
            named += " (which the trainer has not)"
        with suppress(*CANNOT_BE):
            if not run(changed).out_of_memory:
                return f"{said}; with {named} it fits (simulated)"
            tried.append(named)
    without = f"with {' or '.join(tried)} it does not fit either (simulated); " if tried else ""
    return f"{said}; {without}{_what_may_help(job, strategy, worst)}"


def _what(job: Job, strategy: SimulatedStrategy, worst: Overflow) -> str:
    """What takes the memory."""
    if worst.where == "host":
        return "batches decoded ahead overflow the hosts' memory"
    if worst.phase == "rollout":
        return "an engine's weights and largest prompt overflow its devices"
    if strategy.packing is not None:
        return "a stage's layers and packs overflow its device"
    state, held = f"{job.kept_bytes / _GB:.0f} GB", f"{job.memory_limit / _GB:.0f} GB"
    if job.kept_bytes >= job.memory_limit:
        return f"the model's state alone takes {state} of a device's {held}"
    return f"activations overflow, beside {state} of the model's state"


def _changes(job: Job, strategy: SimulatedStrategy, worst: Overflow) -> Iterator[Overrides]:
    """Changes that may make room where it is missing, the least first."""
    scenario, a_node = job.scenario, job.cluster.ranks_per_node
    if worst.where == "host":
        if scenario.loading.prefetch > 1:
            yield {"loading.prefetch": "1"}
    elif worst.phase == "rollout":
        for devices in _doubled(scenario.rollout.tensor_parallel, a_node):
            yield {"rollout.tensor_parallel": devices}
    elif strategy.packing is not None:
        for stages in _doubled(scenario.pipeline.stages, scenario.ranks):
            yield {"pipeline.stages": stages}
        yield {"pipeline.pack_tokens": str(scenario.pipeline.pack_tokens // 2)}
    elif job.kept_bytes >= job.memory_limit:
        yield from _for_state(job)
    else:
        yield from _for_activations(job, strategy, worst.longest_tokens)


def _for_state(job: Job) -> Iterator[Overrides]:
    """Sharding it further: over all ranks, fully, over more ranks; more again where activations need the room left."""
    scenario = job.scenario
    whole = {"shards": str(scenario.ranks)} if job.shards < scenario.ranks else {}
    if whole and _state_bytes(job, scenario.ranks, fully=scenario.sync == "layer") < job.memory_limit:
        yield whole
    if scenario.sync != "layer" and _state_bytes(job, scenario.ranks, fully=True) < job.memory_limit:
        yield {**whole, "sync": "layer"}
    for fully in (scenario.sync == "layer", True):
        if ranks := _ranks_for_state(job, fully=fully):
            sync = {"sync": "layer"} if fully and scenario.sync != "layer" else {}
            for count in (ranks, 2 * ranks):
                yield {"ranks": str(count), **({"shards": str(count)} if scenario.shards else {}), **sync}
            return


def _for_activations(job: Job, strategy: SimulatedStrategy, longest: int) -> Iterator[Overrides]:
    scenario, asked = job.scenario, job.scenario.micro_batch_tokens
    if not scenario.recompute:
        yield {"recompute": "true"}
    if asked is not None and asked > job.room_tokens:
        yield {"micro_batch_tokens": str(job.room_tokens)}
    if scenario.sync != "layer":
        yield {"sync": "layer"}
    if strategy.plan == "adaptive" and scenario.pack_length is None:
        degrees = sorted(job.architecture.language.legal_degrees(scenario.data_ranks))
        for degree in degrees:
            if degree > job.largest_degree(strategy) and _has_room(job, longest, degree):
                yield {"max_degree": str(degree)}
    for devices in _doubled(scenario.tensor_parallel, job.cluster.ranks_per_node):
        if scenario.ranks % int(devices) == 0:
            split = replace(job, scenario=replace(scenario, tensor_parallel=int(devices)))
            if _has_room(split, longest, split.largest_degree(strategy)):
                yield {"tensor_parallel": devices}


def _has_room(job: Job, longest: int, degree: int) -> bool:
    """Whether the longest sample may fit, by its tokens in the language model alone."""
    per_token = language_bytes_per_token(job.architecture.language, recompute=job.scenario.recompute)
    return job.kept_bytes + longest * per_token / degree / job.scenario.tensor_parallel < job.memory_limit


def _what_may_help(job: Job, strategy: SimulatedStrategy, worst: Overflow) -> str:
    """In general, where nothing simulated helps."""
    in_training = worst.where == "device" and worst.phase != "rollout" and strategy.packing is None
    if in_training and job.kept_bytes >= job.memory_limit:
        if ranks := _ranks_for_state(job, fully=True):
            return f"the state fits from ranks={ranks}, fully sharded (sync=layer); activations need more"
        return "no number of these devices has room for it; take larger ones, or cut the model (pipeline.stages)"
    if is_table(job.scenario.data):
        return "smaller images and videos, scanned so, may help"
    return "smaller media (media.*) may help"


def _state_bytes(job: Job, ranks: int, *, fully: bool) -> float:
    """``Job.kept_bytes`` of the model sharded over so many ranks."""
    if fully:
        return kept_bytes_sharded(job.architecture, ranks)
    return parameters(job.architecture) * (6 / job.scenario.tensor_parallel + 12 / ranks)


def _ranks_for_state(job: Job, *, fully: bool) -> int | None:
    """Least ranks, of whole nodes and more than there are, among which the state fits; None where none do."""
    unit = math.lcm(job.cluster.ranks_per_node, job.scenario.tensor_parallel)
    counts = range((job.scenario.ranks // unit + 1) * unit, (job.cluster.ranks or _MOST_RANKS) + 1, unit)
    return next((count for count in counts if _state_bytes(job, count, fully=fully) < job.memory_limit), None)


def _doubled(value: int, most: int) -> list[str]:
    """Its doubles up to a limit."""
    return [str(value << shift) for shift in range(1, most.bit_length()) if value << shift <= most]
