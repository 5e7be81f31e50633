"""Adaptive plans beside the exact optimum of small problems, found by HiGHS."""

import numpy as np
import pytest
from planning_cases import batch_of, sharded_costs_of
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from trimtab.planning.sequence_groups import GroupFamily, group_family
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.schema.costs import ShardedCosts

SETTINGS = PlanSettings(strategy="adaptive", max_degree=4)


def optimum(costs: ShardedCosts, family: GroupFamily) -> float:
    """Least time of the slowest rank: one binary for each sample and node, one continuous for the time."""
    choices = [
        (sample, costs.language_ns[sample, costs.degrees.index(degree)], node)
        for sample in range(len(costs.language_ns))
        for degree in family.degrees
        for node in family.nodes(degree)
    ]
    count, samples = len(choices), len(costs.language_ns)
    scale = float(costs.language_ns.max())
    once = coo_array((np.ones(count), ([c[0] for c in choices], range(count))), shape=(samples, count + 1))
    cells = [(rank, column, cost / scale) for column, (_, cost, node) in enumerate(choices) for rank in node]
    cells += [(rank, count, -1.0) for rank in range(family.ranks)]
    rows, columns, values = zip(*cells, strict=True)
    loads = coo_array((values, (rows, columns)), shape=(family.ranks, count + 1))
    found = milp(
        np.append(np.zeros(count), 1.0),
        integrality=np.append(np.ones(count), 0),
        bounds=Bounds(0, np.append(np.ones(count), np.inf)),
        constraints=[LinearConstraint(once, 1, 1), LinearConstraint(loads, -np.inf, 0)],
        options={"mip_rel_gap": 1e-3, "time_limit": 30},
    )
    assert found.success, found.message
    return float(found.fun) * scale


@pytest.mark.parametrize(("ranks", "seed"), [(4, 0), (4, 1), (4, 2), (4, 3), (4, 4), (6, 0), (6, 4), (6, 6)])
def test_plans_are_near_the_optimum(ranks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = np.exp(rng.normal(7, 1, 2 * ranks)).astype(int).tolist()
    tokens[0] *= 4
    batch = batch_of(tokens)
    costs = sharded_costs_of(batch, ranks, max_degree=4)
    plan = plan_step(batch, costs, ranks, SETTINGS)
    assert costs.sharded is not None
    best = optimum(costs.sharded, group_family(ranks, costs.sharded.degrees, 4))
    assert 0.999 * best <= plan.step_ns <= 1.03 * best
