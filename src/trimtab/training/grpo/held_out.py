"""Held-out greedy accuracy of a GRPO run's model, against the dataset's own answers."""

from __future__ import annotations

from dataclasses import asdict

from trimtab.loader.preparer import StepPreparer
from trimtab.loader.sampler import StepSampler
from trimtab.loader.step_loader import StepLoader
from trimtab.loader.step_planner import StepPlanner
from trimtab.training.evaluate import evaluate, telling_of_the_model
from trimtab.training.grpo.job import GRPOJob
from trimtab.training.progress import RunProgress
from trimtab.training.run_folder import RunFolder


def evaluate_held_out(job: GRPOJob, progress: RunProgress, folder: RunFolder | None) -> None:
    """Score the samples of ``settings.evaluation`` and write ``evaluation.json``; a collective of all ranks."""
    loader, steps = _loader(job)
    try:
        with telling_of_the_model(job.settings.folder / "model"):
            accuracy = evaluate(job.model, loader, steps, job.ranks)
    finally:
        loader.close()
    for line in accuracy.told():
        progress.say(line)
    if folder:
        folder.write_json("evaluation.json", asdict(accuracy))


def _loader(job: GRPOJob) -> tuple[StepLoader, int]:
    settings, reader = job.settings, job.held_out
    assert reader is not None
    size = min(settings.evaluation.samples_per_step, len(reader.table))
    sampler = StepSampler(num_samples=len(reader.table), samples_per_step=size, seed=settings.seed)
    preparer = None
    if job.executor:
        skip = settings.loader.on_bad_sample == "skip"
        preparer = StepPreparer(reader, job.executor, ranks=job.packer.ranks, skip_bad=skip)
    loader = StepLoader(
        sampler=sampler,
        planner=StepPlanner(reader.table, job.costs, ranks=job.ranks.size, settings=job.plan_settings),
        preparer=preparer,
        settings=settings.loader,
        group=job.ranks.control,
        last_step=sampler.steps_per_epoch,
    )
    return loader, sampler.steps_per_epoch
