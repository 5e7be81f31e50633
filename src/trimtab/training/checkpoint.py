"""Checkpoints of a run: weights and optimizer by torch.distributed.checkpoint, the rest as one JSON file.

A checkpoint is written aside and renamed, so a folder with its final name is always whole.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from trimtab.errors import CheckpointError
from trimtab.training.checkpoint_names import PREVIOUS, PROGRESS, REPLACED, checkpoints_in, latest, name_after
from trimtab.training.damage import damaged_file, what_remains
from trimtab.training.full_disk import bytes_to_write, cut_short, space_told


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a run needs to go on, beside weights and optimizer.

    Attributes:
        next_step: first step not yet trained.
        loader: the loader's state.
        costs: coefficients of a measured cost model, or None.
        dataset: digest of the data trained on.
        settings: the run's, resolved, or None where nobody wrote them.
    """

    next_step: int
    loader: dict[str, Any]
    costs: dict[str, Any] | None = None
    dataset: str = ""
    settings: dict[str, Any] | None = None


def save(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, group: dist.ProcessGroup
) -> Path:
    """Write ``folder/step-NNNNNN`` and drop older checkpoints; a collective of ``group`` (gloo).

    Raises:
        CheckpointError: a rank could not write (full disk, no permission); raised on every rank, nothing half-written
            is left.
    """
    final = folder / name_after(progress.next_step)
    aside = folder / f".{final.name}.partial"
    failure: _Failure | None = None
    needed = 0
    try:
        weights, optimizer_state = get_state_dict(model, optimizer)
        needed = bytes_to_write((weights, optimizer_state), is_first=group.rank() == 0)
        dcp.save({"model": weights, "optimizer": optimizer_state}, checkpoint_id=aside, process_group=group)
        if group.rank() == 0:
            _finish(aside, final, progress)
    except (OSError, dcp.api.CheckpointException) as error:
        failure = _Failure.of(error, group.rank())
    ends: list[tuple[_Failure | None, int]] = [(None, 0)] * group.size()
    dist.all_gather_object(ends, (failure, needed), group=group)
    failed = next((one for one, _ in ends if one is not None), None)
    if failed is not None:
        told = [_not_written(final, aside, failed, sum(size for _, size in ends)) if group.rank() == 0 else ""]
        dist.broadcast_object_list(told, group=group, group_src=0)
        raise CheckpointError(told[0])
    return final


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """Why a rank could not write; ``cut_short`` where its disk may be full."""

    rank: int
    reason: str
    cut_short: bool

    @classmethod
    def of(cls, error: BaseException, rank: int) -> _Failure:
        if isinstance(error, dcp.api.CheckpointException):
            rank, (error, _) = next(iter(error.failures.items()))
        short = cut_short(error)
        return cls(rank=rank, reason=short or _first_line(error), cut_short=short is not None)


def _not_written(final: Path, aside: Path, failed: _Failure, needed: int) -> str:
    """Remove what was written and say what happened."""
    shutil.rmtree(aside, ignore_errors=True)
    told = [f"rank {failed.rank} could not write checkpoint {final}: {failed.reason}"]
    if failed.cut_short:
        told.append(space_told(final.parent, needed))
    older = latest(final.parent)
    stays = f"; {older.name} is still there to resume from" if older else ""
    return f"{'; '.join(told)}; free space or choose another runs folder{stays}"


def to_go_on_from(folder: Path, *, resume: bool, is_first: bool) -> Path | None:
    """The checkpoint a run goes on from, or None where it begins anew; then what another run left is set aside.

    Args:
        folder: of checkpoints.
        resume: whether to go on.
        is_first: whether this is the rank that moves files and tells the user.

    Raises:
        CheckpointError: the newest one lacks its progress.
    """
    path = next(reversed(checkpoints_in(folder)), None)
    if resume:
        if path is None and is_first:
            print(f"no checkpoint in {folder}: beginning at step 0", file=sys.stderr, flush=True)
        if path is not None and not (path / PROGRESS).is_file():
            raise _not_resumed(path, f"{PROGRESS} is missing")
        return path
    if path is not None and is_first:
        aside = folder / PREVIOUS
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        for older in checkpoints_in(folder):  # whose removal was cut off; a resume must not find them
            shutil.rmtree(older, ignore_errors=True)
        said = f"an earlier run's checkpoint {path.name} was set aside as {aside}; --resume would have gone on from it"
        print(said, file=sys.stderr, flush=True)
    return None


def read_progress(path: Path) -> Progress:
    """What a checkpoint says of its run.

    Raises:
        CheckpointError: it is damaged.
    """
    try:
        progress = Progress(**json.loads((path / PROGRESS).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise _not_resumed(path, f"{PROGRESS} is damaged") from error
    kinds = ((progress.next_step, int), (progress.loader, dict), (progress.costs or {}, dict))
    if not all(isinstance(value, kind) for value, kind in (*kinds, (progress.settings or {}, dict))):
        raise _not_resumed(path, f"{PROGRESS} is damaged")
    return progress


def load(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup, *, dataset: str
) -> Progress:
    """Restore weights and optimizer in place, whatever number of ranks wrote them; a collective of ``group``.

    Weight decay and the like stay those the optimizer was made with.

    Args:
        path: of the checkpoint.
        model: sharded as it was.
        optimizer: of its parameters.
        group: gloo group of all ranks.
        dataset: digest of the data of this run.

    Raises:
        CheckpointError: the checkpoint is damaged, or belongs to another model or other data.
    """
    progress = read_progress(path)
    if progress.dataset and progress.dataset != dataset:
        raise CheckpointError(
            f"cannot resume from {path}: it was trained on other data (another dataset, order or scan); give the same "
            "dataset files and table, or another name"
        )
    _check_whole(path, group)
    own = [{name: value for name, value in those.items() if name != "params"} for those in optimizer.param_groups]
    try:
        weights, optimizer_state = get_state_dict(model, optimizer)
        state: dict[str, Any] = {"model": weights, "optimizer": optimizer_state}
        dcp.load(state, checkpoint_id=path, process_group=group)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    except (OSError, ValueError, KeyError, RuntimeError, dcp.api.CheckpointException) as error:
        why = f"it cannot be read ({_reason(error)})"
        raise _of_another_model(path, error) or _not_resumed(path, why) from error
    for restored, settings in zip(optimizer.param_groups, own, strict=True):
        restored.update(settings)
    return progress


def _of_another_model(path: Path, error: BaseException) -> CheckpointError | None:
    """The checkpoint is whole, and its weights are not those of this model."""
    reason = _reason(error)
    if not any(sign in reason for sign in ("Size mismatch", "Missing key", "Unexpected key")):
        return None
    return CheckpointError(
        f"cannot resume from {path}: it was made with another model or other lora settings ({reason}); put back those "
        f"it was made with, see config.yaml in {path.parent.parent}, or give another name"
    )


def _check_whole(path: Path, group: dist.ProcessGroup) -> None:
    """Raise on every rank where any finds damage: torch would go on with changed numbers, or print pages."""
    try:
        found = damaged_file(path, group.rank(), group.size())
    except OSError as error:
        found = f"{Path(error.filename or path).name} cannot be read ({error.strerror})"
    everyone: list[str | None] = [None] * group.size()
    dist.all_gather_object(everyone, found, group=group)
    for one in everyone:
        if one is not None:
            raise _not_resumed(path, one)


def _not_resumed(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"cannot resume from {path}: {why}; {what_remains(path)}")


def _finish(aside: Path, final: Path, progress: Progress) -> None:
    (aside / PROGRESS).write_text(json.dumps(asdict(progress)))
    if final.exists():
        replaced = final.with_name(f"{final.name}{REPLACED}")
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)  # latest finds it there until the new one has its name
    aside.rename(final)
    for other in checkpoints_in(final.parent):
        if other != final:
            shutil.rmtree(other, ignore_errors=True)


def _reason(error: BaseException) -> str:
    """In one line; of what torch raises where it reads broken files only the kind, since the rest is advice."""
    rank = ""
    if isinstance(error, dcp.api.CheckpointException):
        number, (error, _) = next(iter(error.failures.items()))
        rank = f"rank {number}: "
    foreign = isinstance(error, UnpicklingError) or "PytorchStreamReader" in str(error)
    return rank + (type(error).__name__ if foreign else _first_line(error))


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
