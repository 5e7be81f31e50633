"""The trainer's settings that a simulated strategy stands for."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.simulate.job import Job
from trimtab.simulate.merit import OURS
from trimtab.simulate.stages_command import stages_command
from trimtab.simulate.strategies import SimulatedStrategy, strategy_named
from trimtab.simulate.training_inputs import Inputs

_LEAST_PREFETCH = 1  # the trainer always prepares a step ahead


@dataclass(frozen=True, kw_only=True)
class HowToRun:
    """A command of trimtab's.

    Attributes:
        command: with capitals for what is not known, such as MODEL.
        remark: what it is to the strategy simulated.
        needs: what must be put in or done before, in one sentence; "" where it runs as it stands.
    """

    command: str
    remark: str
    needs: str = ""

    def __str__(self) -> str:
        """One line."""
        return f"{self.remark}: {self.command}"


def how_to_run(job: Job, name: str) -> HowToRun:
    """The command, or what of trimtab comes nearest to another system's strategy.

    Args:
        job: with the settings to run.
        name: of the strategy.
    """
    scenario = job.scenario
    if scenario.pipeline.stages:
        return HowToRun(command=stages_command(job), remark="cut and recompute (packs: packing=isf or best)")
    strategy = strategy_named(name, scenario.task, scenario.sync)
    remark, inputs = "run", Inputs.of(job)
    if name not in OURS:
        remark = f"{name} is another system's way; trimtab's nearest"
    elif differing := _differing(job, strategy):
        remark = f"the trainer has no {' and no '.join(differing)}; its nearest to what was simulated"
    command = f"trimtab train {scenario.task} {inputs} {' '.join(_settings(job, strategy))}"
    return HowToRun(command=command, remark=remark, needs=inputs.needs)


def _differing(job: Job, strategy: SimulatedStrategy) -> list[str]:
    """What was simulated that the trainer cannot do."""
    scenario = job.scenario
    cannot = {
        f"tensor_parallel={scenario.tensor_parallel}": scenario.tensor_parallel > 1,
        "packs that ranks share": scenario.pack_length is not None and job.largest_degree(strategy) > 1,
        "balance_vision=false": not scenario.balance_vision and strategy.balance_vision,
        "loading.prefetch=0": scenario.loading.prefetch < _LEAST_PREFETCH,
    }
    return [name for name, so in cannot.items() if so]


def _settings(job: Job, strategy: SimulatedStrategy) -> list[str]:
    scenario, loading = job.scenario, job.scenario.loading
    degree = _degree(job, strategy)
    mode = "off" if strategy.plan == "as-is" else "on"
    mode_of_loader, workers = "shadow", loading.workers_per_rank
    if strategy.loader == "controller":  # rank 0 has the processes of all ranks
        mode_of_loader, workers = "central", max(1, loading.controller_workers // scenario.data_ranks)
    prefetch = max(_LEAST_PREFETCH, loading.prefetch)
    return [
        *_batch(job),
        "dtype=bfloat16",
        f"loader.mode={mode_of_loader} loader.workers={workers} loader.prefetch={prefetch}",
        f"balance.mode={mode} balance.sync={scenario.sync} balance.max_degree={degree}",
        f"recompute={'true' if scenario.recompute else 'false'}",
        *_cap(job, degree),
    ]


def _degree(job: Job, strategy: SimulatedStrategy) -> int:
    """Most ranks that share a sample, as the trainer allows it: packs run whole, and so does what meets once a step."""
    if job.scenario.pack_length is not None or job.scenario.sync == "step":
        return 1
    return job.largest_degree(strategy)


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
    longest = int(job.workload.samples.tokens.max(initial=1))
    longest += scenario.rollout.max_tokens if scenario.task == "grpo" else 0
    tokens = max(scenario.micro_batch_tokens or job.room_tokens, -(-longest // degree))
    return [f"max_tokens_per_micro_batch={tokens}"]
