"""Which degrees a strategy may give samples, and what they cost there."""

from __future__ import annotations

import numpy as np

from trimtab.errors import SettingsError
from trimtab.planning.bounds import sharded_bound
from trimtab.planning.feasibility import feasible_degrees
from trimtab.planning.problem import PartitionProblem, Sharding
from trimtab.planning.sequence_groups import GroupFamily, group_family
from trimtab.planning.settings import PlanSettings
from trimtab.planning.strategies import Strategy
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata


def sharding_for(
    strategy: Strategy, batch: BatchMetadata, costs: Costs, ranks: int, settings: PlanSettings
) -> Sharding | None:
    """The degrees and costs a strategy searches; None where it keeps samples whole.

    Raises:
        SettingsError: costs are of whole samples only, ranks meet too seldom for sharding, or the degree asked for is
            none the model or the ranks allow.
    """
    if not strategy.shards:
        return None
    if settings.sync == "step":
        raise SettingsError(
            f"strategy {strategy.name!r} needs sync='layer' or 'micro_batch': ranks that share a sample meet in each"
        )
    if costs.sharded is None:
        raise SettingsError(
            f"strategy {strategy.name!r} needs costs at several degrees, these are of whole samples only; "
            "extend them with trimtab.cost.sharding.with_degrees"
        )
    family = _family(strategy, batch, costs, ranks, settings)
    columns = [costs.sharded.degrees.index(degree) for degree in family.degrees]
    cost_ns = costs.sharded.language_ns[:, columns]
    if settings.objective == "attention" and strategy.degree is None:
        cost_ns = -(-np.square(batch.tokens)[:, None] // np.array(family.degrees, dtype=np.int64))
    return Sharding(family=family, cost_ns=cost_ns, sent_bytes=costs.sharded.sent_bytes[:, columns])


def _family(strategy: Strategy, batch: BatchMetadata, costs: Costs, ranks: int, settings: PlanSettings) -> GroupFamily:
    assert costs.sharded is not None
    if strategy.degree is None:
        return group_family(
            ranks,
            costs.sharded.degrees,
            settings.max_degree,
            ranks_per_node=settings.ranks_per_node,
            needed=_needed_degree(batch, settings),
        )
    degree = strategy.degree
    if costs.legal_degrees is not None and degree not in costs.legal_degrees:
        legal = ", ".join(str(each) for each in costs.legal_degrees)
        raise SettingsError(
            f"strategy {strategy.name!r}: the model's heads do not split into {degree}; its legal degrees are {legal}"
        )
    if ranks % degree:
        raise SettingsError(f"strategy {strategy.name!r} needs a multiple of {degree} ranks, there are {ranks}")
    if degree not in costs.sharded.degrees:
        known = ", ".join(str(each) for each in costs.sharded.degrees)
        raise SettingsError(f"strategy {strategy.name!r}: costs are known at degrees {known} only; raise max_degree")
    return GroupFamily(ranks=ranks, degrees=tuple(sorted({1, degree})))


def _needed_degree(batch: BatchMetadata, settings: PlanSettings) -> int:
    """Degree at which the largest sample fits the caps."""
    caps = [cap for cap in (settings.max_tokens_per_micro_batch, settings.max_tokens_per_rank) if cap is not None]
    return -(-int(batch.tokens.max(initial=0)) // min(caps)) if caps else 1


def largest_degree(strategy: Strategy, costs: Costs, settings: PlanSettings) -> int:
    """Largest degree the strategy may give a sample: no more than asked for, and one that heads and ranks allow."""
    if not strategy.shards or costs.sharded is None:
        return 1
    return strategy.degree or max(degree for degree in costs.sharded.degrees if degree <= settings.max_degree)


def any_degree_bound(problem: PartitionProblem, costs: Costs) -> int:
    """``sharded_bound`` over every degree the costs are known at, also those the strategy does not use."""
    assert costs.sharded is not None  # sharding_for has refused such costs
    degrees = costs.sharded.degrees
    return sharded_bound(costs.sharded.language_ns, feasible_degrees(problem, degrees), degrees, problem.ranks)
