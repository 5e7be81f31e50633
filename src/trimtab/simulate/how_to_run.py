"""The trainer's settings that a simulated strategy stands for."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.simulate.job import Job
from trimtab.simulate.strategies import strategy_named


@dataclass(frozen=True, kw_only=True)
class HowToRun:
    """A command of trimtab's.

    Attributes:
        command: with "..." for model and data.
        remark: what it is to the strategy simulated.
    """

    command: str
    remark: str

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
        command = f"trimtab stages --stages {scenario.pipeline.stages} --tokens {scenario.pipeline.pack_tokens} ..."
        return HowToRun(command=command, remark="cut and recompute (packs: packing=isf or best)")
    remark = "run"
    if name not in ("all", "whole-sample"):
        remark = f"{name} is another system's way; trimtab's nearest"
    return HowToRun(command=f"trimtab train {scenario.task} ... {' '.join(_settings(job, name))}", remark=remark)


def _settings(job: Job, name: str) -> list[str]:
    scenario, loading = job.scenario, job.scenario.loading
    shares = name not in ("whole-sample", "as-is", "loongforge") and scenario.sync != "step"
    mode = "off" if name == "as-is" else "on"
    return [
        *_batch(job),
        "dtype=bfloat16",
        f"loader.mode=shadow loader.workers={loading.workers_per_rank} loader.prefetch={loading.prefetch}",
        f"balance.mode={mode} balance.sync={scenario.sync} balance.max_degree={scenario.max_degree if shares else 1}",
        f"recompute={'true' if scenario.recompute else 'false'}",
        *_cap(job, shares),
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


def _cap(job: Job, shares: bool) -> list[str]:
    scenario = job.scenario
    if scenario.pack_length is not None:
        return []  # packing.tokens is it
    planned = strategy_named("all" if shares else "whole-sample", scenario.task, scenario.sync)
    longest = int(job.workload.samples.tokens.max(initial=1))
    longest += scenario.rollout.max_tokens if scenario.task == "grpo" else 0
    asked, least = scenario.micro_batch_tokens, -(-longest // job.largest_degree(planned))
    tokens = job.micro_batch_tokens(planned, longest) if asked is None else max(asked, least)
    return [f"max_tokens_per_micro_batch={tokens}"]
