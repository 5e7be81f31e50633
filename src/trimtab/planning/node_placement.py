"""Samples of chosen degrees onto nested nodes, highest degree first.

When the samples of degree p are placed, all ranks of a node of p are loaded alike, since every sample placed before
covers the node whole. So longest-first over the nodes of each degree is exact, with the load of any of its ranks as
a node's start, and ranks left over at one degree simply start empty at the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.bins import Bins, longest_first
from trimtab.planning.feasibility import token_cap
from trimtab.planning.local_search import local_search
from trimtab.planning.lpt import lpt
from trimtab.planning.problem import PartitionProblem, Sharding

_CLOSE = 0.001  # to the mean: exchanges beyond it buy nothing
_WITHIN_REACH = 1.01  # of a limit: exchanges seldom win more than 1 %


@dataclass(frozen=True, eq=False, kw_only=True)
class Placement:
    """Where samples run (N samples, M micro-batches, R ranks).

    Attributes:
        column: int64 [N], column of each sample's degree.
        rank: int64 [N], first rank of its node.
        micro_batch: int64 [N].
        load: int64 [M, R], nanoseconds.
        held: int64 [M, R], tokens.
        slowest_ns: sum over micro-batches of the slowest rank.
        sent_bytes: bytes ranks send each other.
    """

    column: NDArray[np.int64]
    rank: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    load: NDArray[np.int64]
    held: NDArray[np.int64]
    slowest_ns: int
    sent_bytes: int


class NodePlacer:
    """Places samples for one problem; all micro-batches are filled alike."""

    def __init__(self, problem: PartitionProblem, sharding: Sharding, target: int) -> None:
        """Make a placer.

        Args:
            problem: its ``micro_batches`` are filled.
            sharding: degrees and costs.
            target: time of a micro-batch's slowest rank that is good enough, nanoseconds.
        """
        self.sharding = sharding
        self.ranks = problem.ranks
        self.micro_batches = problem.micro_batches
        self.target = target
        self.degrees = np.array(sharding.family.degrees, dtype=np.int64)
        self.tokens = -(-problem.tokens[:, None] // self.degrees)
        self.cap = token_cap(problem)
        self.rank_cap = problem.max_tokens_per_rank
        self._rows = np.arange(len(problem))

    def place(self, column: NDArray[np.int64], rounds: int, limit: float = np.inf) -> Placement | None:
        """Place every sample at the degree of its column; None where the caps leave no room or the limit is missed.

        Args:
            column: int64 [N].
            rounds: of local search in each degree, where longest-first misses the target.
            limit: slowest time of interest, nanoseconds; placing ends as soon as it cannot be kept.
        """
        least = self._least(column)
        if least * self.micro_batches > limit:
            return None
        state = _State(self, column, int(max(self.target, least * (1 + _CLOSE))))
        for index in reversed(range(len(self.degrees))):
            rows = np.flatnonzero(column == index)
            if len(rows) and not state.fill(rows, index, rounds):
                return None
            if self.micro_batches == 1 and state.load.max() > limit and index:
                return None
        if rounds and state.target < state.load.max() <= limit * _WITHIN_REACH:
            for index in range(len(self.degrees)):
                state.exchange(np.flatnonzero(column == index), index, rounds)
        return self._finished(state)

    def _least(self, column: NDArray[np.int64]) -> int:
        """Mean over ranks and micro-batches of what the samples cost at these degrees, nanoseconds."""
        work = int((self.sharding.cost_ns[self._rows, column] * self.degrees[column]).sum())
        return -(-work // (self.ranks * self.micro_batches))

    def _finished(self, state: _State) -> Placement | None:
        if self.micro_batches > 1:
            state.gather_similar()
        if self.rank_cap is not None and state.held.sum(axis=0).max(initial=0) > self.rank_cap:
            return None
        return Placement(
            column=state.column,
            rank=state.rank,
            micro_batch=state.micro_batch,
            load=state.load,
            held=state.held,
            slowest_ns=int(state.load.max(axis=1).sum()),
            sent_bytes=int(self.sharding.sent_bytes[self._rows, state.column].sum()),
        )


class _State:
    """Loads and places while a placement is made."""

    def __init__(self, placer: NodePlacer, column: NDArray[np.int64], target: int) -> None:
        self.placer = placer
        self.target = target
        self.column = column
        self.rank = np.zeros_like(column)
        self.micro_batch = np.zeros_like(column)
        shape = (placer.micro_batches, placer.ranks)
        self.load = np.zeros(shape, dtype=np.int64)
        self.held = np.zeros(shape, dtype=np.int64)

    def fill(self, rows: NDArray[np.int64], index: int, rounds: int) -> bool:
        """Place samples of one degree on top of what is there; False where one finds no room."""
        order, bins = self._bins(rows, index)
        node = lpt(bins)
        if node is None:
            return False
        if rounds:
            node = local_search(bins, node, self.target, 0.0, rounds)
        self._put(rows[order], node, index)
        return True

    def exchange(self, rows: NDArray[np.int64], index: int, rounds: int) -> None:
        """Move and swap samples of one degree between its nodes, all others staying."""
        per_micro_batch = self.placer.ranks // int(self.placer.degrees[index])
        if not len(rows) or per_micro_batch * self.placer.micro_batches < 2:
            return
        degree = int(self.placer.degrees[index])
        node = self.micro_batch[rows] * per_micro_batch + self.rank[rows] // degree
        self._add(rows, node, index, -1)
        order, bins = self._bins(rows, index)
        self._put(rows[order], local_search(bins, node[order], self.target, 0.0, rounds), index)

    def gather_similar(self) -> None:
        """Exchange whole nodes between micro-batches so that the most loaded ones meet in the same."""
        top = int(self.placer.degrees[-1])
        whole = self.placer.ranks // top * top
        for start, stop, width in ((0, whole, top), (whole, self.placer.ranks, self.placer.ranks - whole)):
            if start < stop:
                self._gather(start, stop, width)

    def _gather(self, start: int, stop: int, width: int) -> None:
        blocks = self.load[:, start:stop].reshape(-1, width)
        across = (stop - start) // width
        order = np.argsort(-blocks.max(axis=1), kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        rows = np.flatnonzero((self.rank >= start) & (self.rank < stop))
        block, offset = np.divmod(self.rank[rows] - start, width)
        self.micro_batch[rows], block = np.divmod(place[self.micro_batch[rows] * across + block], across)
        self.rank[rows] = start + block * width + offset
        for values in (self.load, self.held):
            values[:, start:stop] = values[:, start:stop].reshape(-1, width)[order].reshape(-1, stop - start)

    def _bins(self, rows: NDArray[np.int64], index: int) -> tuple[NDArray[np.int64], Bins]:
        """The nodes of one degree as bins, and the order of ``rows`` in them."""
        placer = self.placer
        cost, tokens = placer.sharding.cost_ns[rows, index], placer.tokens[rows, index]
        order = longest_first(cost, None if placer.cap is None else tokens)
        bins = Bins(
            cost=cost[order],
            tokens=tokens[order],
            count=placer.micro_batches * (placer.ranks // int(placer.degrees[index])),
            max_tokens=placer.cap,
            start=self._nodes(self.load, index).max(axis=1),
            held=self._nodes(self.held, index).max(axis=1),
        )
        return order, bins

    def _nodes(self, values: NDArray[np.int64], index: int) -> NDArray[np.int64]:
        """Values of each node's ranks, [nodes, p]; ranks left over are not among them."""
        degree = int(self.placer.degrees[index])
        return values[:, : self.placer.ranks // degree * degree].reshape(-1, degree)

    def _put(self, rows: NDArray[np.int64], node: NDArray[np.int64], index: int) -> None:
        degree = int(self.placer.degrees[index])
        self.micro_batch[rows], within = np.divmod(node, self.placer.ranks // degree)
        self.rank[rows] = within * degree
        self._add(rows, node, index, 1)

    def _add(self, rows: NDArray[np.int64], node: NDArray[np.int64], index: int, sign: int) -> None:
        placer, degree = self.placer, int(self.placer.degrees[index])
        nodes = placer.ranks // degree
        values = (self.load, placer.sharding.cost_ns), (self.held, placer.tokens)
        for total, of_sample in values:
            on_node = np.zeros(placer.micro_batches * nodes, dtype=np.int64)
            np.add.at(on_node, node, sign * of_sample[rows, index])
            total[:, : nodes * degree] += np.repeat(on_node, degree).reshape(placer.micro_batches, -1)
