"""What a training command is told of the rollout, and what it does otherwise than was simulated."""

from __future__ import annotations

from trimtab.cost.memory import parameters
from trimtab.simulate.job import Job

_BF16 = 2
SERVER = {
    "SERVER": "the inference server's host",
    "SERVED_MODEL": "its name for the model",
    "WEIGHTS": "a folder that trainer and server see, for the weights of each step",
}
"""Words in capitals of ``server_words``, and what they stand for."""


def needs_server(job: Job) -> bool:
    """Whether replies must come from an inference server, as no device can hold the whole model."""
    return job.scenario.task == "grpo" and _weight_bytes(job) > job.cluster.device_memory


def server_words(job: Job) -> list[str]:
    """Settings of the server, where there must be one."""
    if not needs_server(job):
        return []
    url, model, weights = "http://SERVER:8000/v1", "SERVED_MODEL", "WEIGHTS"
    server = {"url": url, "model": model, "weights": weights}
    return ["rollout.engine=server", *(f"rollout.server.{name}={value}" for name, value in server.items())]


def of_rollout(job: Job) -> list[str]:
    """What a simulated rollout does that the command does not ask for."""
    scenario, told = job.scenario, []
    if scenario.task != "grpo":
        return []
    simulated = f"simulated with rollout.tensor_parallel={scenario.rollout.tensor_parallel}"
    if needs_server(job):
        told.append(
            f"{simulated}; the model's {_weight_bytes(job) / 1e9:.0f} GB of bf16 weights fit no device of "
            f"{job.cluster.device_memory / 1e9:.0f} GB, so rollout.engine=server"
        )
    elif scenario.rollout.tensor_parallel > 1:
        told.append(
            f"{simulated}; the trainer's own engine generates on every training "
            "rank by itself, rollout.engine=server is for a model larger than one device"
        )
    if scenario.rollout.reference:
        told.append("simulated with rollout.reference; the trainer has one with objective.kl_coefficient above 0 only")
    return told


def _weight_bytes(job: Job) -> float:
    return float(_BF16 * parameters(job.architecture))
