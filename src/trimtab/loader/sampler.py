"""Which samples form a step: every sample once an epoch, in an order that depends on seed and epoch alone."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import CheckpointError, SettingsError
from trimtab.schema.number_of import number_of
from trimtab.schema.setting_checks import check_whole


def first_other(order: NDArray[np.int64], *, bad: Collection[int], taken: Collection[int]) -> int:
    """The first row that is neither bad nor taken, else one that is not bad, else the first."""
    free = (row for row in order.tolist() if row not in bad and row not in taken)
    usable = (row for row in order.tolist() if row not in bad)
    return int(next(free, next(usable, order[0])))


class StepSampler:
    """Deals rows of a table to optimizer steps, globally: ranks and their number play no part.

    The last step of an epoch is short where the table does not divide. A sample that turns out bad is replaced by
    another one in a later step (``replace``); everything else is a function of (seed, step).
    """

    def __init__(self, *, num_samples: int, samples_per_step: int, seed: int) -> None:
        """Deal ``num_samples`` rows, ``samples_per_step`` at a time.

        Raises:
            SettingsError: the table is smaller than one step, or that is no whole number of at least 1.
        """
        check_whole("samples_per_step", samples_per_step, 1)
        if num_samples < samples_per_step:
            raise SettingsError(
                f"the dataset has {number_of(num_samples, 'sample')}, fewer than samples_per_step={samples_per_step}; "
                f"set samples_per_step to at most {num_samples}"
            )
        self._num_samples = num_samples
        self._samples_per_step = samples_per_step
        self._seed = seed
        self._extra: dict[int, list[int]] = {}
        self._consumed = 0
        self._epoch_order: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, dtype=np.int64))
        self._lock = threading.Lock()

    @property
    def steps_per_epoch(self) -> int:
        """Steps that make up one epoch, the short last one included."""
        return -(-self._num_samples // self._samples_per_step)

    def rows(self, step: int) -> NDArray[np.int64]:
        """Rows of the table that form ``step``, replacements last."""
        epoch, index = divmod(step, self.steps_per_epoch)
        with self._lock:
            if self._epoch_order[0] != epoch:
                order = np.random.default_rng([self._seed, epoch]).permutation(self._num_samples)
                self._epoch_order = (epoch, order.astype(np.int64))
            begin = index * self._samples_per_step
            rows = self._epoch_order[1][begin : begin + self._samples_per_step]
            extra = self._extra.get(step, [])
        return np.concatenate([rows, np.array(extra, dtype=np.int64)])

    def pack_of(self, step: int) -> None:
        """None: samples of a step are free to run with any others."""

    def replace(self, *, bad_rows: list[int], in_step: int) -> list[int]:
        """Add one other sample for each bad one to ``in_step``, drawn from (seed, step, row); returns their rows.

        The step has none of them yet, unless the dataset is too small for that.
        """
        taken = set(self.rows(in_step).tolist())
        chosen: list[int] = []
        for row in bad_rows:
            draw = np.random.default_rng([self._seed, in_step, row])
            order = draw.permutation(self._num_samples)[: len(taken) + 2 * len(bad_rows) + 1]
            chosen.append(first_other(order, bad=bad_rows, taken={*taken, *chosen}))
        with self._lock:
            self._extra.setdefault(in_step, []).extend(chosen)
        return chosen

    def consumed(self, step: int) -> None:
        """Note that ``step`` has been trained on."""
        with self._lock:
            self._consumed = step + 1
            self._extra = {later: rows for later, rows in self._extra.items() if later > step}

    @property
    def next_step(self) -> int:
        """The first step not yet consumed."""
        return self._consumed

    def state_dict(self) -> dict[str, Any]:
        """What was consumed; small whatever the dataset."""
        return {
            "next_step": self._consumed,
            "extra": {str(step): rows for step, rows in self._extra.items()},
            "seed": self._seed,
            "num_samples": self._num_samples,
            "samples_per_step": self._samples_per_step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the steps that were consumed.

        Raises:
            CheckpointError: the state was made with another dataset size, step size or seed.
        """
        if "stretches" in state:
            raise CheckpointError("the checkpoint was made with packing; resume it with the same packing settings")
        missing = [name for name in self.state_dict() if name not in state]
        if missing:
            raise CheckpointError(f"the state lacks {', '.join(missing)}; give what state_dict() returned, unchanged")
        for name in ("seed", "num_samples", "samples_per_step"):
            if state[name] != getattr(self, f"_{name}"):
                raise CheckpointError(
                    f"the checkpoint was made with {name}={state[name]}, now it is {getattr(self, f'_{name}')}; "
                    "resume with the same dataset, seed and samples_per_step"
                )
        self._consumed = int(state["next_step"])
        self._extra = {int(step): list(rows) for step, rows in state["extra"].items()}
