"""What no pack of a pipeline can hold is refused, so that every strategy trains the same samples."""

from __future__ import annotations

import numpy as np

from trimtab.errors import SettingsError
from trimtab.planning.packing.problem import PackProblem
from trimtab.planning.packing.sample_loads import PATCHES_PER_TILE, SampleLoads
from trimtab.simulate.job import Job
from trimtab.simulate.strategies import strategy_named


def pack_problem(job: Job) -> PackProblem:
    """The job's samples under the caps of a pipeline's packs."""
    pipeline, loads = job.scenario.pipeline, SampleLoads.from_batch(job.workload.samples, None)
    return loads.problem(patches=pipeline.pack_tiles * PATCHES_PER_TILE, tokens=pipeline.pack_tokens)


def check_packs_hold_every_sample(job: Job) -> None:
    """Refuse caps below the largest sample where a strategy compared makes packs.

    Raises:
        SettingsError: a sample exceeds a cap; the largest is named, and the caps that would hold all.
    """
    if all(strategy_named(name).packing != "isf" for name in job.scenario.compared):
        return
    problem = pack_problem(job)
    oversized = problem.oversized()
    if not len(oversized):
        return
    pipeline, loads = job.scenario.pipeline, SampleLoads.from_batch(job.workload.samples, None)
    told, remedies = [], []
    for kind, cap, held in (
        ("tokens", pipeline.pack_tokens, loads.tokens),
        ("tiles", pipeline.pack_tiles, -(-loads.patches // PATCHES_PER_TILE)),
    ):
        row = int(np.argmax(held))
        if held[row] > cap:
            sample = job.workload.samples.sample_ids[row]
            told.append(f"pipeline.pack_{kind}={cap} is less than the {held[row]} {kind} of sample {sample!r}")
            remedies.append(f"pipeline.pack_{kind}={held[row]}")
    raise SettingsError(
        f"{' and '.join(told)} ({len(oversized)} of {len(problem)} samples fit no pack); "
        f"set {' '.join(remedies)} or more"
    )
