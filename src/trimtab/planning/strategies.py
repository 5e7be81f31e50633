"""Strategies by name, what each honours, and the refusal of what it does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trimtab.errors import SettingsError
from trimtab.planning import sharding, whole_sample
from trimtab.planning.peers import as_is, equal_count, karmarkar_karp, loongforge
from trimtab.planning.problem import Assignment, PartitionProblem

VisionRule = Literal["spread", "whole-images", "at-owner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A solver, what it honours, and what it does with the vision encoder.

    Attributes:
        name: how commands and settings call it.
        solve: returns an assignment, or None where it found none that keeps the caps.
        honours: demands of ``PartitionProblem.demands()`` its answers satisfy.
        ranks_only: it chooses ranks; micro-batches are cut afterwards, as its host does.
        vision: "spread": frames over ranks (ours); "whole-images": LoongForge's encoder balance; "at-owner": none.
        shards: samples may be shared by several ranks.
        degree: the one degree of all samples, or None where the strategy chooses.
    """

    name: str
    solve: Callable[[PartitionProblem], Assignment | None]
    honours: frozenset[str]
    ranks_only: bool = True
    vision: VisionRule = "at-owner"
    shards: bool = False
    degree: int | None = None

    def check(self, problem: PartitionProblem) -> None:
        """Refuse a problem this strategy would solve only in part.

        Raises:
            SettingsError: names the demands it would ignore, or says that degrees are missing.
        """
        if self.shards and problem.sharding is None:
            raise SettingsError(f"strategy {self.name!r} needs a problem that says which degrees samples may have")
        split_after = frozenset({"micro_batches", "micro_batch_cap"}) if self.ranks_only else frozenset()
        ignored = problem.demands() - self.honours - split_after
        if ignored:
            raise SettingsError(
                f"strategy {self.name!r} does not honour {', '.join(sorted(ignored))}; "
                "use 'whole-sample' or leave these out"
            )


def _uniform(degree: int) -> Strategy:
    return Strategy(
        name=f"uniform-{degree}",
        solve=sharding.solve_uniform,
        honours=sharding.HONOURS,
        ranks_only=False,
        vision="spread",
        shards=True,
        degree=degree,
    )


_ALL = (
    Strategy(name="as-is", solve=as_is.solve, honours=as_is.HONOURS, ranks_only=False),
    Strategy(name="equal-count", solve=equal_count.solve, honours=equal_count.HONOURS),
    Strategy(name="loongforge", solve=loongforge.solve, honours=loongforge.HONOURS, vision="whole-images"),
    Strategy(name="karmarkar-karp", solve=karmarkar_karp.solve, honours=karmarkar_karp.HONOURS),
    Strategy(
        name="whole-sample",
        solve=whole_sample.solve,
        honours=whole_sample.HONOURS,
        ranks_only=False,
        vision="spread",
    ),
    *(_uniform(degree) for degree in (2, 4, 8)),
    Strategy(
        name="adaptive",
        solve=sharding.solve_adaptive,
        honours=sharding.HONOURS,
        ranks_only=False,
        vision="spread",
        shards=True,
    ),
)
STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _ALL}


def strategy_named(name: str) -> Strategy:
    """Look up a strategy; "uniform-N" may name any degree.

    Raises:
        SettingsError: there is none of that name.
    """
    uniform = re.fullmatch(r"uniform-([1-9][0-9]*)", name)
    if name not in STRATEGIES and uniform is None:
        raise SettingsError(f"strategy {name!r} is unknown; choose one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name] if uniform is None else _uniform(int(uniform[1]))
