"""Supervised fine-tuning, read top to bottom: sample, plan, load, run, learn."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict

from trimtab.cost.schedule import CostSchedule
from trimtab.loader.step_loader import LoadedStep
from trimtab.report.prediction import rank_error_of
from trimtab.runtime.groups import Ranks
from trimtab.runtime.loss import gradient_scale, step_loss
from trimtab.runtime.peak_memory import take_peak_memory_bytes
from trimtab.training import checkpoint
from trimtab.training.bad_samples import bad_sample_lines
from trimtab.training.calibrate import measure_costs
from trimtab.training.evaluate import evaluate, telling_of_the_model
from trimtab.training.export import export
from trimtab.training.job import Job, build_job
from trimtab.training.optimizer import learning_rate, skip_step, take_step
from trimtab.training.progress import RunProgress
from trimtab.training.refit import CostRefit
from trimtab.training.resumed_settings import checkpoint_to_resume
from trimtab.training.run_folder import BAD_SAMPLES, RunFolder, plain_settings
from trimtab.training.settings import SFTSettings
from trimtab.training.skipped_steps import SkippedSteps
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
    with StopSignal() as stop, closing(SupervisedRun(settings, ranks, stop)) as run:
        done = run.train_until(settings.last_step)
        run.save()
        if not done:
            run.say("--resume goes on from the checkpoint")
        if done and settings.last_step == settings.steps:
            run.finish()
    return done


class SupervisedRun:
    """One run on this rank: its job, the loader ahead of it, and the folder rank 0 writes."""

    def __init__(self, settings: SFTSettings, ranks: Ranks, stop: StopSignal) -> None:
        """Build the job, resume where asked to, and begin to load.

        Raises:
            TrimtabError: the settings, data, model or checkpoint cannot be used.
        """
        self._settings, self._stop = settings, stop
        self._job = build_job(settings, ranks)
        self._skipped = SkippedSteps(
            settings.optimizer,
            nothing="sample with loss",
            inspect="the data",
            listed_in=settings.folder / BAD_SAMPLES,
        )
        resumed = self._resume()
        first_step = resumed.next_step if resumed else 0
        self._saved = first_step if resumed else None
        self._job.costs = self._measured_costs(resumed)
        self._loader = self._job.open_loader()
        self._folder = RunFolder(settings.folder, first_step=first_step) if ranks.is_first else None
        if self._folder:
            self._folder.write_settings(settings)
        self._progress = RunProgress(
            f"{settings.name} {settings.balance.variant}",
            first_step=first_step,
            steps=settings.last_step,
            quiet=not ranks.is_first,
        )
        self._refit = self._watch_costs()

    def train_until(self, last_step: int) -> bool:
        """Train the steps before ``last_step``; False where a signal stopped the run."""
        with self._progress as progress:
            began = time.perf_counter()
            for step in range(self._job.sampler.next_step, last_step):
                self._job.clock.mark("data")
                loaded = self._loader.next()
                outcome = train_step(self._job, loaded, began, self._stop)
                began = time.perf_counter()
                self._record(loaded, outcome)
                if outcome.stop:
                    progress.say(f"stopped by a signal after step {step}")
                    return step + 1 == self._settings.last_step
                every = self._settings.checkpoint_every
                if every and (step + 1) % every == 0:
                    self.save()
        return True

    def say(self, text: str) -> None:
        """Tell the user, on the first rank."""
        self._progress.say(text)

    def save(self) -> None:
        """Write a checkpoint of what was consumed, unless the last one is."""
        job, settings = self._job, self._settings
        if self._saved == job.sampler.next_step:
            return
        progress = checkpoint.Progress(
            next_step=job.sampler.next_step,
            loader=self._loader.state_dict(),
            costs=job.costs.to_json(job.sampler.next_step) if settings.balance.costs == "measured" else None,
            dataset=job.reader.digest(),
            settings=plain_settings(settings),
        )
        checkpoint.save(settings.folder / "checkpoints", job.model, job.optimizer, progress, job.ranks.control)
        self._saved = job.sampler.next_step

    def finish(self) -> None:
        """Write the model, score the held-out samples, tell how good predictions were and what could not be loaded."""
        settings, job, say = self._settings, self._job, self._progress.say
        export(job.model, settings.lora, settings.model, settings.folder / "model", job.ranks.control)
        say(f"model written to {settings.folder / 'model'}")
        if settings.evaluation.data:
            self._evaluate()
        predicted = rank_error_of(self._folder.steps()) if self._folder else None
        if predicted:
            say(str(predicted))
        bad = self._folder.bad_samples() if self._folder else []
        for line in bad_sample_lines(bad, what="sample", outcome="carried no loss", steps=settings.steps):
            say(line)

    def close(self) -> None:
        """Stop loading."""
        self._loader.close()
        self._job.close()

    def _resume(self) -> checkpoint.Progress | None:
        job = self._job
        path = checkpoint_to_resume(self._settings, job.ranks)
        if path is None:
            return None
        progress = checkpoint.load(path, job.model, job.optimizer, job.ranks.control, dataset=job.reader.digest())
        job.sampler.load_state_dict(progress.loader)
        return progress

    def _measured_costs(self, resumed: checkpoint.Progress | None) -> CostSchedule:
        """What plans are made from; a resumed run goes on with the coefficients it had, and the changes it knew of."""
        job = self._job
        if self._settings.balance.costs == "analytic":
            return job.costs
        if resumed and resumed.costs:
            return CostSchedule.from_json(resumed.costs, otherwise=job.costs.newest)
        table = job.reader.table.batch()
        costs = measure_costs(job.model, table, patch_dim=job.reader.geometry.patch_values, ranks=job.ranks)
        job.clock.finish()  # measuring is no part of the first step
        return CostSchedule(costs) if costs else job.costs

    def _watch_costs(self) -> CostRefit:
        """Refits of measured costs; a resumed run has the steps before it from its record."""
        settings = self._settings
        refit = CostRefit(
            self._job.costs,
            every=settings.balance.refit_every if settings.balance.costs == "measured" else 0,
            last_step=settings.steps,
            horizon=self._loader.horizon,
            group=self._job.ranks.control,
            say=self._progress.say,
        )
        if self._folder:
            refit.remember(self._folder.steps())
        return refit

    def _record(self, loaded: LoadedStep, outcome: StepOutcome) -> None:
        report = outcome.report
        self._job.sampler.consumed(report.step)
        if self._folder:
            self._folder.write_step(report)
            if loaded.bad_samples:
                self._folder.write_bad_samples(report.step, loaded.bad_samples)
        self._progress.step(report)
        self._refit.after(report)
        self._skipped.after(report.step, had_data=loaded.denominator != 0, finite=report.grad_norm is not None)

    def _evaluate(self) -> None:
        loader, steps = self._job.open_evaluation_loader()
        try:
            with telling_of_the_model(self._settings.folder / "model"):
                accuracy = evaluate(self._job.model, loader, steps, self._job.ranks)
        finally:
            loader.close()
        for line in accuracy.told():
            self._progress.say(line)
        if self._folder:
            self._folder.write_json("evaluation.json", asdict(accuracy))


def train_step(job: Job, loaded: LoadedStep, began: float, stop: StopSignal) -> StepOutcome:
    """One optimizer step: a forward and backward for each micro-batch, then the update.

    Args:
        job: this rank's part of the run.
        loaded: the step.
        began: ``time.perf_counter()`` at the end of the step before.
        stop: whether this rank was asked to stop.
    """
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
    grad_norm = None
    if loaded.denominator:
        grad_norm = take_step(job.optimizer, rate, settings.optimizer.max_grad_norm)
    else:
        skip_step(job.optimizer)
    figures = RankFigures(
        loss=loss_sum,
        step_ms=(time.perf_counter() - began) * 1e3,
        times=job.clock.finish(),
        moved_bytes=job.moved_bytes(loaded),
        peak_memory_bytes=take_peak_memory_bytes(ranks.device),
        stop=stop.wanted,
    )
    return gather_report(loaded, figures, rate=rate, grad_norm=grad_norm, group=ranks.control)
