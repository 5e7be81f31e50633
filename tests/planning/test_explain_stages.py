"""Explanations of stage plans name the rank that holds things up, and each rank's memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from stage_cases import random_profile

from trimtab.planning.explain_stages import explain_stages
from trimtab.planning.stage_problem import StageProblem
from trimtab.planning.stages import plan_peers, plan_stages
from trimtab.schema.stages import LayerSpread


def test_bottleneck_and_memory_are_told() -> None:
    profile = random_profile(7, 10)
    problem = StageProblem(profile=profile, ranks=3, micro_batches=6, memory_bytes=10**9)
    plan = plan_stages(problem)
    lines = explain_stages(plan, profile)
    assert "proven least" in lines[0]
    assert lines[1].startswith(f"rank {plan.bottleneck} computes longest")
    assert [line.split(":")[0] for line in lines[2:5]] == ["rank 0", "rank 1", "rank 2"]
    assert "activations of 3 micro-batches" in lines[2]
    assert len(lines) == 6


def test_a_plan_that_does_not_fit_says_what_it_needs() -> None:
    profile = random_profile(7, 10)
    problem = StageProblem(profile=profile, ranks=3, micro_batches=6, memory_bytes=1)
    plan = plan_peers(problem)["uniform-layers"]
    lines = explain_stages(plan, profile)
    assert lines[-1].startswith("does not fit: needs")
    assert "over the cap" in lines[2]


def test_advice_tells_memory_from_coarse_layers_from_bad_cuts() -> None:
    profile = random_profile(7, 10)
    flat = replace(
        profile,
        forward_ns=np.full(10, 10),
        backward_ns=np.full(10, 20),
        boundary_ns=np.zeros(10, dtype=np.int64),
    )
    problem = StageProblem(profile=flat, ranks=3, micro_batches=60, memory_bytes=10**9)
    assert explain_stages(plan_stages(problem), flat)[-1].startswith("layers: the largest takes")
    even = StageProblem(profile=flat, ranks=2, micro_batches=6, memory_bytes=10**9)
    assert explain_stages(plan_stages(even), flat)[-1].startswith("ranks are within 1 % of even")
    lopsided = replace(flat, parameters=np.array([90, *[1] * 9], dtype=np.int64))
    uneven = plan_peers(replace(even, profile=lopsided))["uniform-parameters"]
    assert explain_stages(uneven, lopsided)[-1].startswith("cuts: rank 1 has more than its share")


def test_recorded_micro_batches_are_told() -> None:
    profile = random_profile(7, 10)
    spread = LayerSpread(forward_ns=np.stack([profile.forward_ns] * 3), backward_ns=np.stack([profile.backward_ns] * 3))
    profile = replace(profile, spread=spread)
    plan = plan_stages(StageProblem(profile=profile, ranks=3, micro_batches=6, memory_bytes=10**9))
    assert "over 3 recorded micro-batches" in explain_stages(plan, profile)[2]
