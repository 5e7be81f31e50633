"""What would make a job fit in memory where nothing does, by what overflows; what is named for sure was simulated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest

from trimtab.cost.memory import language_bytes_per_token, parameters
from trimtab.simulate.device_memory import Overflow
from trimtab.simulate.job import Job
from trimtab.simulate.run import StrategyResult
from trimtab.simulate.strategies import SimulatedStrategy, strategy_named
from trimtab.simulate.sweep import CANNOT_BE, Overrides, Run
from trimtab.simulate.workload import is_table

_MOST_TRIED = 6
_MOST_RANKS = 65_536
_BF16 = 2
_GB = 1e9


@dataclass(frozen=True, kw_only=True, eq=False)
class Unfit:
    """Settings with which something overflows.

    Attributes:
        job: of these settings.
        result: simulated of it.
        run: simulates it with some settings changed.
    """

    job: Job
    result: StrategyResult
    run: Run

    @cached_property
    def strategy(self) -> SimulatedStrategy:
        """What was simulated."""
        return strategy_named(self.result.name, self.job.scenario.task, self.job.scenario.sync)

    @cached_property
    def worst(self) -> Overflow:
        """What lacks most."""
        return max(self.result.out_of_memory, key=lambda each: each.needed_gb / each.limit_gb)

    @property
    def state_overflows(self) -> bool:
        """The model's state alone fills a device."""
        if self.strategy.packing is not None:
            return _stage_bytes(self.job) >= self.job.memory_limit
        return self.job.kept_bytes >= self.job.memory_limit


def remedy(nearest: Unfit, given: Unfit | None = None) -> str:
    """What overflows, and what makes it fit; or, where nothing tried does, what may.

    Args:
        nearest: to fitting.
        given: the settings as given, where the nearest has others: a change may fit on them alone.
    """
    said, tried = _what(nearest), []
    for unfit, changed in _attempts(nearest, given):
        named = " ".join(f"{name}={value}" for name, value in changed.items())
        if _is_untrained(changed):
            named += " (which the trainer has not)"
        if unfit is given:
            named += " (the rest as given)"
        with suppress(*CANNOT_BE):
            if not unfit.run(changed).out_of_memory:
                return f"{said}; with {named} it fits (simulated)"
            tried.append(named)
        if len(tried) == _MOST_TRIED:
            break
    without = f"with {' or '.join(tried)} it does not fit either (simulated); " if tried else ""
    return f"{said}; {without}{_what_may_help(nearest)}"


def _attempts(nearest: Unfit, given: Unfit | None) -> list[tuple[Unfit, Overrides]]:
    """Changes by turns of both, the least first; those the trainer can make before those it cannot."""
    of_each = [[(unfit, changed) for changed in _changes(unfit)] for unfit in (nearest, given) if unfit is not None]
    turns = [attempt for turn in zip_longest(*of_each) for attempt in turn if attempt is not None]
    return sorted(turns, key=lambda attempt: _is_untrained(attempt[1]))


def _is_untrained(changed: Overrides) -> bool:
    return "tensor_parallel" in changed


def _what(unfit: Unfit) -> str:
    """What takes the memory."""
    job, worst = unfit.job, unfit.worst
    if worst.where == "host":
        return "batches decoded ahead overflow the hosts' memory"
    if worst.phase == "rollout":
        return "an engine's weights and largest prompt overflow its devices"
    if unfit.strategy.packing is not None:
        return "a stage's layers and packs overflow its device"
    state, held = f"{job.kept_bytes / _GB:.0f} GB", f"{job.memory_limit / _GB:.0f} GB"
    if unfit.state_overflows:
        return f"the model's state alone takes {state} of a device's {held}"
    return f"activations overflow, beside {state} of the model's state"


def _changes(unfit: Unfit) -> Iterator[Overrides]:
    """Changes that may make room where it is missing, the least first."""
    job, worst = unfit.job, unfit.worst
    if worst.where == "host":
        if job.scenario.loading.prefetch > 1:
            yield {"loading.prefetch": "1"}
    elif worst.phase == "rollout":
        for devices in _doubled(job.scenario.rollout.tensor_parallel, job.cluster.ranks_per_node):
            yield {"rollout.tensor_parallel": devices}
    elif unfit.strategy.packing is not None:
        yield from _for_stages(job)
    elif unfit.state_overflows:
        yield from _for_state(job)
    else:
        yield from _for_activations(job, unfit.strategy, worst.longest_tokens)


def _for_stages(job: Job) -> Iterator[Overrides]:
    """More stages of the same ranks, smaller packs, more ranks, more stages of more ranks."""
    scenario, pipeline = job.scenario, job.scenario.pipeline
    grown = [{"pipeline.stages": int(stages)} for stages in _doubled(pipeline.stages, scenario.ranks)]
    grown.append({"pipeline.pack_tokens": pipeline.pack_tokens // 2})
    for ranks in (2 * scenario.ranks, 4 * scenario.ranks):
        stages = pipeline.stages * ranks // scenario.ranks
        grown += [{"ranks": ranks}, {"ranks": ranks, "pipeline.stages": stages}]
    for changed in grown:
        ranks, stages = changed.get("ranks", scenario.ranks), changed.get("pipeline.stages", pipeline.stages)
        cut = replace(job, scenario=replace(scenario, ranks=ranks, pipeline=replace(pipeline, stages=stages)))
        if ranks % stages == 0 and _stage_bytes(cut) < job.memory_limit:
            yield {name: str(value) for name, value in changed.items()}


def _stage_bytes(job: Job) -> float:
    """State of a stage where all have as much: no cut has less of its largest."""
    scenario = job.scenario
    return parameters(job.architecture) * (4 + 12 / scenario.data_ranks) / scenario.pipeline.stages


def _for_state(job: Job) -> Iterator[Overrides]:
    """Sharding it further: over all ranks, fully, over more ranks; more again where activations need the room left."""
    scenario = job.scenario
    whole = {"shards": str(scenario.ranks)} if job.shards < scenario.ranks else {}
    if whole and job.kept_bytes_over(scenario.ranks, fully=scenario.sync == "layer") < job.memory_limit:
        yield whole
    if scenario.sync != "layer" and job.kept_bytes_over(scenario.ranks, fully=True) < job.memory_limit:
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
    if scenario.pack_length is not None:
        yield from _shorter_packs(job, scenario.pack_length)
    if scenario.sync != "layer":
        yield {"sync": "layer"}
    if strategy.plan == "adaptive" and scenario.pack_length is None:
        degrees = sorted(job.architecture.language.legal_degrees(scenario.data_ranks))
        for degree in degrees:
            if degree > job.largest_degree(strategy) and _has_room(job, longest / degree):
                yield {"max_degree": str(degree)}
    yield from _more_ranks(job, strategy, longest)
    for devices in _doubled(scenario.tensor_parallel, job.cluster.ranks_per_node):
        if scenario.ranks % int(devices) == 0:
            split = replace(job, scenario=replace(scenario, tensor_parallel=int(devices)))
            if _has_room(split, _least_share(split, strategy, longest)):
                yield {"tensor_parallel": devices}


def _shorter_packs(job: Job, length: int) -> Iterator[Overrides]:
    """Packs halved, down to the longest sample."""
    while (length := length // 2) >= int(job.workload.samples.tokens.max()):
        if _has_room(job, length):
            yield {"pack_length": str(length)}


def _more_ranks(job: Job, strategy: SimulatedStrategy, longest: int) -> Iterator[Overrides]:
    """Twice and four times as many share the state, whole nodes from one node on."""
    scenario, a_node, ranks = job.scenario, job.cluster.ranks_per_node, job.scenario.ranks
    for _ in range(2):
        ranks = min(2 * ranks, a_node) if ranks < a_node else 2 * ranks
        changed = {"ranks": str(ranks), **({"shards": str(ranks)} if scenario.shards else {})}
        shared = replace(job, scenario=replace(scenario, ranks=ranks, shards=ranks if scenario.shards else None))
        if ranks <= (job.cluster.ranks or _MOST_RANKS) and _has_room(shared, _least_share(shared, strategy, longest)):
            yield changed


def _least_share(job: Job, strategy: SimulatedStrategy, longest: int) -> float:
    """Tokens a rank must hold at least: of the longest sample, or of a pack."""
    return max(longest / job.largest_degree(strategy), job.scenario.pack_length or 0)


def _has_room(job: Job, tokens: float) -> bool:
    """Whether so many may fit, by what they take in the language model alone."""
    per_token = language_bytes_per_token(job.architecture.language, recompute=job.scenario.recompute)
    return job.kept_bytes + tokens * per_token / job.scenario.tensor_parallel < job.memory_limit


def _what_may_help(unfit: Unfit) -> str:
    """In general, where nothing simulated helps."""
    job, worst = unfit.job, unfit.worst
    if worst.where == "host":
        return _smaller_samples(job)
    if worst.phase == "rollout":
        weights = _BF16 * parameters(job.architecture) / job.cluster.ranks_per_node
        if weights >= worst.limit_gb * _GB:
            return "no engine within a node has room for the weights; take larger devices"
        return _smaller_samples(job)
    if unfit.state_overflows and unfit.strategy.packing is not None:
        return "more stages on more ranks (pipeline.stages, ranks) or larger devices may help"
    if unfit.state_overflows:
        if ranks := _ranks_for_state(job, fully=True):
            return f"the state fits from ranks={ranks}, fully sharded (sync=layer); activations need more"
        return "no number of these devices has room for it; take larger ones, or cut the model (pipeline.stages)"
    return _smaller_samples(job)


def _smaller_samples(job: Job) -> str:
    """Of what the longest sample has more of: media or text."""
    samples = job.workload.samples
    row = int(samples.tokens.argmax())
    if 2 * samples.text_tokens[row] > samples.tokens[row]:
        return "shorter texts may help"
    if is_table(job.scenario.data):
        return "smaller images and videos, scanned so, may help"
    return "smaller media (media.*) may help"


def _ranks_for_state(job: Job, *, fully: bool) -> int | None:
    """Least ranks, of whole nodes and more than there are, among which the state fits; None where none do."""
    unit = math.lcm(job.cluster.ranks_per_node, job.scenario.tensor_parallel)
    counts = range((job.scenario.ranks // unit + 1) * unit, (job.cluster.ranks or _MOST_RANKS) + 1, unit)
    return next((count for count in counts if job.kept_bytes_over(count, fully=fully) < job.memory_limit), None)


def _doubled(value: int, most: int) -> list[str]:
    """Its doubles up to a limit."""
    return [str(value << shift) for shift in range(1, most.bit_length()) if value << shift <= most]
