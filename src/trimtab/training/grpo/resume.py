"""Checkpoints of a GRPO run.

They are written between steps: a step in flight is discarded and begun anew, with the same prompts and, since its noise
is keyed, the same replies.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

from trimtab.cost.measured import MeasuredCost
from trimtab.errors import CheckpointError
from trimtab.training import checkpoint
from trimtab.training.calibrate import measure_costs
from trimtab.training.grpo.job import GRPOJob
from trimtab.training.grpo.settings import GRPOSettings
from trimtab.training.resumed_settings import checkpoint_to_resume
from trimtab.training.run_folder import plain_settings
from trimtab.training.together import together

_PIECES, _PIECE_BYTES = 256, 4096


def save(job: GRPOJob) -> None:
    """Write a checkpoint; a collective of all ranks.

    Raises:
        CheckpointError: a rank could not write.
    """
    reward = together(job.ranks.control, "checkpoint", lambda: job.rewarder.state_dict() if job.rewarder else None)
    state = {
        "sampler": job.sampler.state_dict(),
        "lengths": job.lengths.state_dict(),
        "reward": reward,
        "reference": _fingerprint(job.settings),
    }
    costs = job.measured.to_json() if job.measured else None
    progress = checkpoint.Progress(
        next_step=job.sampler.next_step,
        loader=state,
        costs=costs,
        dataset=job.reader.digest(),
        settings=plain_settings(job.settings),
    )
    checkpoint.save(job.settings.folder / "checkpoints", job.model, job.optimizer, progress, job.ranks.control)


def begin(job: GRPOJob) -> int:
    """Resume where the settings ask for it, and measure costs where none came with a checkpoint.

    Returns:
        The first step to run.

    Raises:
        CheckpointError: the last checkpoint is damaged, or belongs to other data, settings or reference.
    """
    path = checkpoint_to_resume(job.settings, job.ranks)
    first_step = load(job, path) if path else 0
    if job.settings.balance.costs == "measured" and job.measured is None:
        table = job.reader.table.batch()
        job.measured = measure_costs(job.model, table, patch_dim=job.reader.geometry.patch_values, ranks=job.ranks)
    return first_step


def load(job: GRPOJob, path: Path) -> int:
    """Go on from a checkpoint; returns the first step to run.

    Raises:
        CheckpointError: it is damaged, or belongs to other data, seed or reference.
    """
    progress = checkpoint.load(path, job.model, job.optimizer, job.ranks.control, dataset=job.reader.digest())
    state: dict[str, Any] = progress.loader
    if "lengths" not in state:
        raise CheckpointError(f"{path}: not a checkpoint of a GRPO run; choose another name")
    if state["reference"] != _fingerprint(job.settings):
        raise CheckpointError(
            f"{path}: the model in {job.settings.model}, which the run is held to, has changed since; put it back"
        )
    if progress.costs and job.settings.balance.costs == "measured":
        job.measured = MeasuredCost.from_json(progress.costs)
    job.sampler.load_state_dict(state["sampler"])
    job.lengths.load_state_dict(state["lengths"])
    together(
        job.ranks.control, "resume", lambda: job.rewarder.load_state_dict(state["reward"]) if job.rewarder else None
    )
    return progress.next_step


def _fingerprint(settings: GRPOSettings) -> str:
    """Digest of the starting model's weight files, with the seed where it has none.

    Of each file its name, its size and pieces spread over it: the start, which lists the tensors, and enough of the
    rest that other weights show, however large the file.
    """
    digest = blake2b(digest_size=8)
    files = sorted(settings.model.glob("*.safetensors"))
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for place in range(_PIECES):
                file.seek(place * max(0, size - _PIECE_BYTES) // max(1, _PIECES - 1))
                digest.update(file.read(_PIECE_BYTES))
    if not files:
        digest.update(str(settings.seed).encode())
    return digest.hexdigest()
