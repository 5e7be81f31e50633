"""Packs of samples that arrive one by one: a bounded buffer, no pass over the whole, no known length."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import CheckpointError, InfeasibleError, MetadataError, SettingsError
from trimtab.planning.packing.pools import PoolCarry, pack_next_pool
from trimtab.planning.packing.problem import PackProblem
from trimtab.planning.packing.settings import PackSettings
from trimtab.planning.packing.step_matching import match_steps
from trimtab.schema.setting_checks import check_whole

StreamSource = Callable[[int], Iterable[tuple[str, Sequence[float]]]]
"""From sample number n on: (key, loads [K]) of each; the same samples in the same order whenever called. Fractions
count as the next whole number."""


@dataclass(frozen=True, slots=True)
class StreamPack:
    """A pack.

    Attributes:
        keys: of its samples.
        loads: their total [K].
        zero_loss: a padding pack, which runs with loss weight 0.
    """

    keys: tuple[str, ...]
    loads: tuple[int, ...]
    zero_loss: bool = False


StreamStep = tuple[StreamPack, ...]
"""One pack a rank."""


class PackStream:
    """Iterates over steps of one pack a rank; every rank iterates over all and takes its own.

    At most ``settings.pool`` and an eighth waiting samples, the packs of ``settings.window`` steps and of one pool are
    held, however long the stream. A sample is held back by at most two pools and two windows.
    """

    def __init__(
        self,
        source: StreamSource,
        *,
        caps: dict[str, int | None],
        ranks: int,
        seed: int,
        settings: PackSettings | None = None,
        report_oversized: Callable[[str, str], None] | None = None,
    ) -> None:
        """Stream from the beginning.

        Args:
            source: the samples.
            caps: name and cap of each load; None: matched over ranks, not capped.
            ranks: data-parallel ranks.
            seed: of the order; give another one for each pass.
            settings: of the packer; method "best".
            report_oversized: called with key and reason of each sample that no pack can hold, which is left out; None:
                such a sample is an error.

        Raises:
            SettingsError: a number is too small, or the method is not "best".
        """
        self._settings = settings or PackSettings()
        if self._settings.method != "best":
            raise SettingsError(f"method={self._settings.method!r} packs a whole epoch at once; stream with 'best'")
        for name, value, least in (("ranks", ranks, 1), ("seed", seed, 0)):
            check_whole(name, value, least)
        self._source, self._caps, self._ranks, self._seed = source, caps, ranks, seed
        self._report_oversized = report_oversized
        self._read = self._pools = self._windows = self._oversized = 0
        self._waiting: list[tuple[str, tuple[int, ...]]] = []
        self._packs: deque[StreamPack] = deque()
        self._steps: deque[StreamStep] = deque()
        self._recent: deque[StreamStep] = deque(maxlen=self._settings.window)

    @property
    def buffered(self) -> int:
        """Samples read and not yet handed out."""
        steps = (pack for step in self._steps for pack in step if not pack.zero_loss)
        return len(self._waiting) + sum(len(pack.keys) for packs in (self._packs, steps) for pack in packs)

    @property
    def num_oversized(self) -> int:
        """Samples left out since no pack can hold them."""
        return self._oversized

    def __iter__(self) -> Iterator[StreamStep]:
        """Go on where the state stands.

        Raises:
            InfeasibleError: a sample exceeds a cap, and nobody is told of such.
            MetadataError: a sample has another number of loads, or one that is negative or not finite.
        """
        samples = iter(self._source(self._read))
        ended = False
        while True:
            while self._steps:
                step = self._steps.popleft()
                self._recent.append(step)
                yield step
            while not ended and len(self._packs) < self._ranks * self._settings.window:
                ended = self._pack_pool(list(islice(samples, self._settings.pool)))
            if not self._packs:
                return
            self._match_window()

    def state_dict(self, *, in_flight: int = 0) -> dict[str, Any]:
        """What is held: as large as the buffer, however long the stream.

        Args:
            in_flight: the last steps that were handed out but not consumed; they are handed out again.

        Raises:
            SettingsError: more are in flight than are remembered, a window's.
        """
        if in_flight > len(self._recent):
            raise SettingsError(
                f"in_flight={in_flight} exceeds the {len(self._recent)} steps remembered; prefetch fewer steps, or "
                "raise the window"
            )
        again = list(self._recent)[len(self._recent) - in_flight :]
        return {
            "read": self._read,
            "pools": self._pools,
            "windows": self._windows,
            "oversized": self._oversized,
            "waiting": [[key, list(loads)] for key, loads in self._waiting],
            "packs": [_to_state(pack) for pack in self._packs],
            "steps": [[_to_state(pack) for pack in step] for step in (*again, *self._steps)],
            "ranks": self._ranks,
            **self._identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the steps consumed; on another number of ranks their packs are matched anew.

        Raises:
            CheckpointError: the state was made with other caps, settings or another seed.
        """
        for name, mine in self._identity().items():
            if state[name] != mine:
                raise CheckpointError(
                    f"the checkpoint's stream was packed with {name}={state[name]}, now it is {mine}; resume with the "
                    "same caps, packing settings and seed (the number of ranks may differ)"
                )
        self._read, self._pools, self._windows = (int(state[name]) for name in ("read", "pools", "windows"))
        self._oversized = int(state["oversized"])
        self._waiting = [(key, tuple(loads)) for key, loads in state["waiting"]]
        self._packs = deque(map(_from_state, state["packs"]))
        self._steps = deque(tuple(map(_from_state, step)) for step in state["steps"])
        self._recent.clear()
        if state["ranks"] != self._ranks:
            left = [pack for step in self._steps for pack in step if not pack.zero_loss]
            self._packs.extendleft(reversed(left))
            self._steps.clear()

    def _identity(self) -> dict[str, Any]:
        return {"seed": self._seed, "caps": dict(self._caps), "settings": asdict(self._settings)}

    def _pack_pool(self, fresh: list[tuple[str, Sequence[float]]]) -> bool:
        """Pack the next samples and those that wait; returns whether the stream has ended."""
        self._read += len(fresh)
        ended = len(fresh) < self._settings.pool
        samples = self._waiting + self._fitting(fresh)
        problem = self._problem([loads for _, loads in samples])
        carry = PoolCarry(rows=np.arange(len(self._waiting), dtype=np.int64))
        rng = np.random.default_rng([self._seed, 0, self._pools])
        rows = np.arange(len(self._waiting), len(samples), dtype=np.int64)
        self._pools += 1
        if samples:
            packs = pack_next_pool(problem.loads[:, problem.capped], problem.limits, rows, carry, rng, last=ended)
            totals = packs.sums(problem.loads).tolist()
            for number, loads in enumerate(totals):
                keys = tuple(samples[row][0] for row in packs[number].tolist())
                self._packs.append(StreamPack(keys, tuple(loads)))
        self._waiting = [samples[row] for row in carry.rows.tolist()] if samples else []
        return ended

    def _fitting(self, fresh: list[tuple[str, Sequence[float]]]) -> list[tuple[str, tuple[int, ...]]]:
        for key, loads in fresh:
            if len(loads) != len(self._caps):
                raise MetadataError(f"sample {key}: {len(loads)} loads {loads}, but caps name {', '.join(self._caps)}")
            for name, load in zip(self._caps, loads, strict=True):
                if not (math.isfinite(load) and load >= 0):
                    raise MetadataError(f"sample {key}: {name}={load} must be a finite number, not negative")
        samples = [(key, tuple(math.ceil(load) for load in loads)) for key, loads in fresh]
        problem = self._problem([loads for _, loads in samples])
        oversized = problem.oversized().tolist()
        for row in oversized:
            if self._report_oversized is None:
                raise InfeasibleError(
                    f"sample {samples[row][0]}: {problem.why_oversized(row)}; raise the cap, or pass report_oversized "
                    "to leave such samples out"
                )
            self._report_oversized(samples[row][0], problem.why_oversized(row))
        self._oversized += len(oversized)
        return [samples[row] for row in problem.fitting().tolist()]

    def _problem(self, loads: list[tuple[int, ...]]) -> PackProblem:
        columns = len(self._caps)
        table: NDArray[np.int64] = np.array(loads, dtype=np.int64).reshape(-1, columns)
        return PackProblem(loads=table, resources=tuple(self._caps), caps=tuple(self._caps.values()))

    def _match_window(self) -> None:
        packs = [self._packs.popleft() for _ in range(min(len(self._packs), self._ranks * self._settings.window))]
        loads = np.array([pack.loads for pack in packs], dtype=np.int64)
        rng = np.random.default_rng([self._seed, 1, self._windows])
        self._windows += 1
        groups = match_steps(loads, self._ranks, self._settings.window, rng)
        for group, zero_loss in zip(groups.pack.tolist(), groups.zero_loss.tolist(), strict=True):
            chosen = [packs[index] for index in group]
            self._steps.append(
                tuple(StreamPack(p.keys, p.loads, zero) for p, zero in zip(chosen, zero_loss, strict=True))
            )


def _to_state(pack: StreamPack) -> list[Any]:
    return [list(pack.keys), list(pack.loads), pack.zero_loss]


def _from_state(state: list[Any]) -> StreamPack:
    keys, loads, zero_loss = state
    return StreamPack(tuple(keys), tuple(loads), bool(zero_loss))
