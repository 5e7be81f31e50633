"""The trainer's settings that a simulated strategy stands for."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.planning.sequence_slices import DEFAULT_PACKING
from trimtab.simulate.as_trained import (
    LEAST_PREFETCH,
    Nearest,
    on_whole_devices,
    trained_degree,
    trained_share,
    trained_workers,
)
from trimtab.simulate.job import Job
from trimtab.simulate.merit import OURS
from trimtab.simulate.rollout_command import of_rollout
from trimtab.simulate.stages_command import stages_command
from trimtab.simulate.strategies import SimulatedStrategy, strategy_named
from trimtab.simulate.training_inputs import Inputs


@dataclass(frozen=True, kw_only=True)
class HowToRun:
    """A command of trimtab's.

    Attributes:
        command: with capitals for what is not known, such as MODEL.
        remark: what it is to the strategy simulated.
        needs: what must be put in or done before, in one sentence; "" where it runs as it stands.
        step_ms: of its step, where it is not what was simulated but its nearest; None where that does not fit either.
    """

    command: str
    remark: str
    needs: str = ""
    step_ms: float | None = None

    def __str__(self) -> str:
        """One line."""
        return f"{self.remark}: {self.command}"


def how_to_run(job: Job, name: str, nearest: Nearest | None = None, *, shared_by: int = 1) -> HowToRun:
    """The command, or what of trimtab comes nearest to another system's strategy.

    Args:
        job: with the settings recommended.
        name: of the strategy.
        nearest: what is run instead, where that is something else; see ``nearest_as_trained``.
        shared_by: most ranks that shared a sample when it was simulated.
    """
    scenario = job.scenario
    if scenario.pipeline.stages:
        return HowToRun(command=stages_command(job), remark="cut and recompute (packs: packing=isf or best)")
    strategy, inputs = strategy_named(name, scenario.task, scenario.sync), Inputs.of(job)
    trained = on_whole_devices(job if nearest is None else nearest.job)
    degree = (nearest and nearest.degree) or trained_degree(trained, strategy)
    command = f"trimtab train {scenario.task} {inputs} {' '.join(_settings(trained, strategy, degree))}"
    beside = [*(_too_large(job) or ([] if nearest is None else [nearest.remark])), *of_rollout(job)]
    remark = _remark(job, strategy, shared_by)
    return HowToRun(
        command=command,
        remark=f"{remark} ({'; '.join(beside)})" if beside else remark,
        needs=inputs.needs,
        step_ms=None if nearest is None else nearest.step_ms,
    )


def _remark(job: Job, strategy: SimulatedStrategy, shared_by: int) -> str:
    """What the command is to the strategy."""
    differing, remark = " and no ".join(_differing(job, strategy, shared_by)), "run"
    if strategy.name not in OURS:
        beyond = f" and the trainer has no {differing}" if differing else ""
        remark = f"{strategy.name} is another system's way{beyond}; trimtab's nearest"
    elif differing:
        remark = f"the trainer has no {differing}; its nearest to what was simulated"
    return remark


def _too_large(job: Job) -> list[str]:
    """Whether the model fits no device the way the trainer shards it."""
    whole = on_whole_devices(job)
    if whole.scenario == job.scenario or whole.kept_bytes < whole.memory_limit:
        return []
    return [f"without it the model's state alone takes {whole.kept_bytes / 1e9:.0f} GB of a device and does not fit"]


def _differing(job: Job, strategy: SimulatedStrategy, shared_by: int) -> list[str]:
    """What was simulated that the trainer cannot do."""
    scenario = job.scenario
    cannot = {
        f"tensor_parallel={scenario.tensor_parallel}": scenario.tensor_parallel > 1,
        f"shards={scenario.shards}": scenario.shards not in (None, scenario.ranks),
        "packs that ranks share": scenario.pack_length is not None and shared_by > 1,
        f"pack_below={scenario.pack_below}": scenario.pack_below != DEFAULT_PACKING.below and shared_by > 1,
        f"pack_tokens={scenario.pack_tokens}": scenario.pack_tokens != DEFAULT_PACKING.tokens and shared_by > 1,
        "balance_vision=false": not scenario.balance_vision and strategy.balance_vision,
        "loading.prefetch=0": scenario.loading.prefetch < LEAST_PREFETCH,
    }
    return [name for name, so in cannot.items() if so]


def _settings(job: Job, strategy: SimulatedStrategy, degree: int) -> list[str]:
    scenario, loading = job.scenario, job.scenario.loading
    mode = "off" if strategy.plan == "as-is" else "on"
    mode_of_loader, workers = "shadow", loading.workers_per_rank
    if strategy.loader == "controller":  # rank 0 has the processes of all ranks
        mode_of_loader, workers = "central", trained_workers(job)
    prefetch = max(LEAST_PREFETCH, loading.prefetch)
    return [
        *_batch(job),
        "dtype=bfloat16",
        f"loader.mode={mode_of_loader} loader.workers={workers} loader.prefetch={prefetch}",
        f"balance.mode={mode} balance.sync={scenario.sync} balance.max_degree={degree}",
        f"recompute={'true' if scenario.recompute else 'false'}",
        *_cap(job, degree),
    ]


def _batch(job: Job) -> list[str]:
    """What a step holds."""
    scenario = job.scenario
    if scenario.task == "grpo":
        rollout = scenario.rollout
        replies = f"rollout.replies={rollout.replies} rollout.max_reply_tokens={rollout.max_tokens}"
        return [f"samples_per_step={scenario.batch_size}", replies]
    if scenario.pack_length is None:
        return [f"samples_per_step={scenario.batch_size}"]
    mean = float(job.workload.samples.tokens.mean())
    samples = max(1, round(scenario.batch_size * scenario.pack_length / mean))
    return [f"samples_per_step={samples} packing=best packing.tokens={scenario.pack_length}"]


def _cap(job: Job, degree: int) -> list[str]:
    scenario = job.scenario
    if scenario.pack_length is not None:
        return []  # packing.tokens is it
    tokens = scenario.micro_batch_tokens or job.room_tokens
    return [f"max_tokens_per_micro_batch={max(tokens, trained_share(job, degree))}"]
