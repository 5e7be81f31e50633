"""A GRPO run: steps one after another, its folder, checkpoints and results."""

from __future__ import annotations

import time
from contextlib import closing

from trimtab.runtime.groups import Ranks
from trimtab.training.bad_samples import bad_sample_lines
from trimtab.training.export import export
from trimtab.training.grpo import resume
from trimtab.training.grpo.held_out import evaluate_held_out
from trimtab.training.grpo.job import build_grpo_job
from trimtab.training.grpo.loop import StepOutcome, grpo_step
from trimtab.training.grpo.prepare import PendingStep, finish_step, start_step
from trimtab.training.grpo.progress import GRPOProgress
from trimtab.training.grpo.replies import reply_records
from trimtab.training.grpo.report import GRPOReport
from trimtab.training.grpo.settings import GRPOSettings
from trimtab.training.run_folder import BAD_SAMPLES, RunFolder
from trimtab.training.skipped_steps import SkippedSteps
from trimtab.training.stop_signal import StopSignal


def train_grpo(settings: GRPOSettings, ranks: Ranks) -> bool:
    """Train on this rank; every rank calls it with the same settings.

    Writes ``config.yaml``, ``steps.jsonl``, checkpoints, ``model/`` and, where held-out samples are given,
    ``evaluation.json`` under ``settings.folder``.

    Returns:
        False where a signal stopped the run, which left a checkpoint.

    Raises:
        TrimtabError: bad input or a failed rank; the same error on every rank.
    """
    with StopSignal() as stop, closing(GRPORun(settings, ranks, stop)) as run:
        done = run.train_until(settings.last_step)
        run.save()
        if not done:
            run.say("--resume goes on from the checkpoint")
        if done and settings.last_step == settings.steps:
            run.finish()
    return done


class GRPORun:
    """One run on this rank: its job, the step being loaded, and the folder rank 0 writes."""

    def __init__(self, settings: GRPOSettings, ranks: Ranks, stop: StopSignal) -> None:
        """Build the job and resume where asked to.

        Raises:
            TrimtabError: the settings, data, model or checkpoint cannot be used.
        """
        self._settings, self._stop = settings, stop
        self._job = build_grpo_job(settings, ranks)
        self._pending: PendingStep | None = None
        self._skipped = SkippedSteps(
            settings.optimizer, nothing="prompt", inspect="the rewards", listed_in=settings.folder / BAD_SAMPLES
        )
        first_step = resume.begin(self._job)
        self._saved = first_step or None
        self._folder = RunFolder(settings.folder, first_step=first_step) if ranks.is_first else None
        if self._folder:
            self._folder.write_settings(settings)
        self._progress = GRPOProgress(
            f"{settings.name} {settings.balance.variant}",
            first_step=first_step,
            steps=settings.last_step,
            quiet=not ranks.is_first,
        )

    def train_until(self, last_step: int) -> bool:
        """Run the steps before ``last_step``; False where a signal stopped the run."""
        with self._progress as progress:
            for step in range(self._job.sampler.next_step, last_step):
                outcome = self._step(step)
                self._record(step, outcome)
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
        if self._saved != self._job.sampler.next_step:
            resume.save(self._job)
            self._saved = self._job.sampler.next_step

    def finish(self) -> None:
        """Write the model, score the held-out samples, list what could not be loaded."""
        settings, job, say = self._settings, self._job, self._progress.say
        export(job.model, settings.lora, settings.model, settings.folder / "model", job.ranks.control)
        say(f"model written to {settings.folder / 'model'}")
        if settings.evaluation.data:
            evaluate_held_out(job, self._progress, self._folder)
        bad = self._folder.bad_samples() if self._folder else []
        for line in bad_sample_lines(bad, what="prompt", outcome="left their steps shorter", steps=settings.steps):
            say(line)

    def close(self) -> None:
        """End this rank's processes."""
        self._job.close()

    def _step(self, step: int) -> StepOutcome:
        """One step, while the next one's media is decoded."""
        began, job = time.perf_counter(), self._job
        with job.watch.phase("data"):
            loaded = finish_step(job, self._pending or start_step(job, step))
            self._pending = start_step(job, step + 1) if step + 1 < self._settings.last_step else None
        return grpo_step(job, loaded, began, self._stop)

    def _record(self, step: int, outcome: StepOutcome) -> None:
        report: GRPOReport = outcome.report
        self._job.sampler.consumed(step)
        if self._folder:
            self._folder.write_step(report)
            if outcome.bad:
                self._folder.write_bad_samples(step, outcome.bad)
            if self._settings.rollout.record:
                self._folder.write_replies(
                    reply_records(step, outcome.experience, outcome.rewards, self._job.tokenizer)
                )
        self._progress.step(report)
        self._skipped.after(step, had_data=report.replies > 0, finite=report.grad_norm is not None)
