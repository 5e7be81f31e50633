"""Layer profiles for tests, and every plan there is of a small one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.stage_problem import StageProblem, plan_recomputing
from trimtab.schema.stages import LayerKind, LayerProfile, StagePlan


def random_profile(seed: int, layers: int, *, alike: bool = False) -> LayerProfile:
    """Layers of random sizes, or of two sizes; vision before language."""
    rng = np.random.default_rng(seed)
    vision = int(rng.integers(0, layers))
    kinds: list[LayerKind] = ["vision" if row < vision else "language" for row in range(layers)]
    which = np.array([kind == "language" for kind in kinds], dtype=np.int64) if alike else np.arange(layers)

    def column(low: int, high: int) -> NDArray[np.int64]:
        return rng.integers(low, high, layers)[which]

    kept = column(0, 40)
    return LayerProfile(
        names=tuple(f"layer.{row}" for row in range(layers)),
        kinds=tuple(kinds),
        forward_ns=column(1, 60),
        backward_ns=column(0, 120),
        recompute_ns=column(0, 60),
        activation_bytes=kept + column(0, 300),
        recomputed_bytes=kept,
        workspace_bytes=column(0, 50),
        parameters=column(0, 9),
        state_bytes=column(0, 200),
        boundary_bytes=column(0, 30),
        boundary_ns=column(0, 25),
    )


def every_partition(problem: StageProblem) -> Iterator[tuple[int, ...]]:
    """Bounds of all of them."""
    layers = len(problem.profile)
    for cuts in combinations(range(1, layers), problem.stages - 1):
        yield (0, *cuts, layers)


def every_plan(problem: StageProblem) -> Iterator[StagePlan]:
    """All partitions with all choices of layers to recompute, whether they fit or not."""
    for bounds in every_partition(problem):
        for chosen in product((False, True), repeat=len(problem.profile)):
            yield plan_recomputing(problem, bounds, np.array(chosen), "brute force")
