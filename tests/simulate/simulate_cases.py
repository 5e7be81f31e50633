"""Small jobs to simulate."""

from dataclasses import replace
from typing import Any

import numpy as np

from trimtab.cost.cluster import Cluster, Link, load_cluster
from trimtab.cost.models import model_preset
from trimtab.schema.metadata import BatchMetadata
from trimtab.simulate.job import Job
from trimtab.simulate.run import StrategyResult, job_of, simulate
from trimtab.simulate.scenario import Scenario
from trimtab.simulate.workload import Workload

MODEL = model_preset("mimo-vl-7b")


def small(**changed: Any) -> Scenario:
    return Scenario(**{"ranks": 8, "batch_size": 16, "steps": 1, "data": "image-heavy", **changed})


def result_of(job: Job, strategy: str) -> StrategyResult:
    return simulate(replace(job, scenario=replace(job.scenario, strategies=(strategy,)))).strategies[0]


def job_with(**changed: Any) -> Job:
    return job_of(small(**changed), MODEL)


def free_links(name: str = "h800") -> Cluster:
    """The cluster with links that take no time."""
    cluster = load_cluster(name)
    free = Link(latency=1e-18, all_to_all=1e24, all_gather=1e24, all_reduce=1e24)
    return replace(cluster, node=free, across=free)


def text_workload(tokens: list[int]) -> Workload:
    """Samples without visuals."""
    count, none = len(tokens), np.zeros(0)
    return Workload(
        samples=BatchMetadata(
            sample_ids=tuple(map(str, range(count))),
            text_tokens=np.array(tokens, dtype=np.int64),
            loss_tokens=np.array(tokens, dtype=np.int64),
            loss_weight=np.ones(count),
            visual_offsets=np.zeros(count + 1, dtype=np.int64),
            grid_thw=np.zeros((0, 3), dtype=np.int64),
            is_video=np.zeros(0, dtype=np.bool_),
            visual_keys=np.zeros(0, dtype=np.int64),
            merge_size=2,
        ),
        decode_pixels=none,
        kept_pixels=none,
        values_per_patch=1,
        description="text",
    )
