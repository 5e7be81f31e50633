"""Supervised fine-tuning, read top to bottom: sample, plan, load, run, learn."""

from __future__ import annotations

import time
from dataclasses import asdict

from trimtab.errors import TrainingError
from trimtab.loader.step_loader import LoadedStep, StepLoader
from trimtab.runtime.groups import Ranks
from trimtab.runtime.loss import gradient_scale, step_loss
from trimtab.training import checkpoint
from trimtab.training.evaluate import evaluate
from trimtab.training.export import export
from trimtab.training.job import Job, build_job
from trimtab.training.optimizer import learning_rate, take_step
from trimtab.training.progress import RunProgress
from trimtab.training.run_folder import RunFolder
from trimtab.training.settings import SFTSettings
from trimtab.training.step_report import RankFigures, StepOutcome, gather_report
from trimtab.training.stop_signal import StopSignal


def train(settings: SFTSettings, ranks: Ranks) -> bool:
    """Train on this rank; every rank calls it with the same settings.

    Writes ``config.yaml``, ``steps.jsonl``, checkpoints, ``model/`` and, where held-out samples are given,
    ``evaluation.json`` under ``settings.folder``.

    Returns:
        False where a signal stopped the run, which left a checkpoint.

    Raises:
        TrimtabError: bad input or a failed rank; the same error on every rank.
    """
    job = build_job(settings, ranks)
    first_step = _resume(job)
    stop = StopSignal()
    loader = job.open_loader()
    try:
        with RunProgress(
            f"{settings.name} {settings.balance.variant}",
            first_step=first_step,
            steps=settings.last_step,
            quiet=not ranks.is_first,
        ) as progress:
            folder = _open_folder(job, first_step)
            done = _train_steps(job, loader, first_step, progress, folder, stop)
            _list_bad_samples(progress, folder)
            _save(job, loader)
            if done and settings.last_step == settings.steps:
                _finish(job, progress, folder)
    finally:
        loader.close()
        job.close()
        stop.restore()
    return done


def _train_steps(
    job: Job, loader: StepLoader, first_step: int, progress: RunProgress, folder: RunFolder | None, stop: StopSignal
) -> bool:
    settings, skipped = job.settings, 0
    began = time.perf_counter()
    for step in range(first_step, settings.last_step):
        job.clock.mark("data")
        loaded = loader.next()
        outcome = train_step(job, loaded, began, stop)
        began = time.perf_counter()
        job.sampler.consumed(step)
        if folder:
            folder.write_step(outcome.report)
            if loaded.bad_samples:
                folder.write_bad_samples(step, loaded.bad_samples)
        progress.step(outcome.report)
        skipped = skipped + 1 if outcome.report.grad_norm is None else 0
        if skipped > settings.optimizer.max_skipped_steps:
            raise TrainingError(
                f"step {step}: the gradient was not finite for {skipped} steps in a row; lower "
                f"optimizer.learning_rate={settings.optimizer.learning_rate:g} or inspect the data"
            )
        if outcome.stop:
            progress.say(f"stopped by a signal after step {step}; --resume goes on from the checkpoint")
            return step + 1 == settings.last_step
        if settings.checkpoint_every and (step + 1) % settings.checkpoint_every == 0:
            _save(job, loader)
    return True


def train_step(job: Job, loaded: LoadedStep, began: float, stop: StopSignal) -> StepOutcome:
    """One optimizer step: a forward and backward for each micro-batch, then the update."""
    settings, ranks = job.settings, job.ranks
    loss_sum = 0.0
    for pack in loaded.packs:
        pack = pack.to(ranks.device)
        scores = job.model(pack)
        loss = step_loss(scores.loss, pack.loss_weights, loaded.denominator)
        (loss * gradient_scale(ranks.size)).backward()
        loss_sum += float(loss.detach())
    job.clock.mark("optimizer")
    rate = learning_rate(loaded.planned.step, settings.steps, settings.optimizer)
    grad_norm = take_step(job.optimizer, rate, settings.optimizer.max_grad_norm)
    figures = RankFigures(
        loss=loss_sum,
        step_ms=(time.perf_counter() - began) * 1e3,
        times=job.clock.finish(),
        moved_bytes=job.moved_bytes(loaded),
        stop=stop.wanted,
    )
    return gather_report(loaded, figures, rate=rate, grad_norm=grad_norm, group=ranks.control)


def _resume(job: Job) -> int:
    path = checkpoint.latest(job.settings.folder / "checkpoints") if job.settings.resume else None
    if path is None:
        return 0
    progress = checkpoint.load(path, job.model, job.optimizer, job.ranks.control)
    job.sampler.load_state_dict(progress.loader)
    return progress.next_step


def _save(job: Job, loader: StepLoader) -> None:
    progress = checkpoint.Progress(next_step=job.sampler.next_step, loader=loader.state_dict())
    checkpoint.save(job.settings.folder / "checkpoints", job.model, job.optimizer, progress, job.ranks.control)


def _open_folder(job: Job, first_step: int) -> RunFolder | None:
    if not job.ranks.is_first:
        return None
    folder = RunFolder(job.settings.folder, first_step=first_step)
    folder.write_settings(job.settings)
    return folder


def _list_bad_samples(progress: RunProgress, folder: RunFolder | None) -> None:
    bad = folder.bad_samples() if folder else []
    if bad:
        progress.say(f"{len(bad)} samples could not be loaded and carried no loss:")
    for entry in bad:
        progress.say(f"  step {entry['step']}, {entry['sample_id']}: {entry['reason']}")


def _finish(job: Job, progress: RunProgress, folder: RunFolder | None) -> None:
    settings = job.settings
    export(job.model, settings.lora, settings.model, settings.folder / "model", job.ranks.control)
    progress.say(f"model written to {settings.folder / 'model'}")
    if not settings.evaluation.data:
        return
    loader, steps = job.open_evaluation_loader()
    try:
        accuracy = evaluate(job.model, loader, steps, job.ranks)
    finally:
        loader.close()
    progress.say(
        f"held-out accuracy over {accuracy.samples} samples: {accuracy.with_pixels:.1%}, "
        f"with blanked pixels {accuracy.blanked:.1%}"
    )
    if folder:
        folder.write_json("evaluation.json", asdict(accuracy))
