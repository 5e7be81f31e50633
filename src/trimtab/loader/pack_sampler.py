"""Which packs form a step: every sample once an epoch, in fresh packs, alike on all ranks."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import CheckpointError, InfeasibleError, LoaderError
from trimtab.loader.pack_step import PackStep
from trimtab.loader.sampler import first_other
from trimtab.planning.packing.epoch import pack_epoch
from trimtab.planning.packing.packs import Packs
from trimtab.planning.packing.problem import PackProblem, smallest_caps
from trimtab.planning.packing.settings import PackSettings
from trimtab.planning.packing.step_matching import StepGroups
from trimtab.planning.packing.stretches import Stretch, deal_after
from trimtab.schema.setting_checks import check_whole

_EPOCHS_KEPT = 2
_DEAL, _REPLACE = 101, 102  # streams of random numbers beside those of ``pack_epoch``


class PackSampler:
    """Deals packs to optimizer steps, for all ranks at once; every rank that asks gets the same answer.

    Everything is a function of (loads, settings, seed, epoch) and of how many steps ran on how many ranks, so the state
    is a few numbers and resuming takes the time to pack one epoch, wherever in it the run stopped. The last step of
    an epoch is filled up with padding packs.
    """

    def __init__(
        self,
        problem: PackProblem,
        *,
        ranks: int,
        micro_batches: int = 1,
        seed: int,
        settings: PackSettings | None = None,
        on_oversized: Literal["raise", "skip"] = "raise",
        sample_ids: Sequence[str] | None = None,
    ) -> None:
        """Pack the rows of ``problem``.

        Args:
            problem: loads of the table's samples, and caps.
            ranks: data-parallel ranks.
            micro_batches: packs each rank runs in an optimizer step.
            seed: decides order and packs, with the epoch.
            settings: of the packer.
            on_oversized: "raise", or "skip" samples that no pack can hold; they are listed in ``oversized``.
            sample_ids: names of the rows, for messages.

        Raises:
            InfeasibleError: a sample exceeds a cap, under "raise", or all do.
            SettingsError: a number is too small.
        """
        for name, value, least in (("ranks", ranks, 1), ("micro_batches", micro_batches, 1), ("seed", seed, 0)):
            check_whole(name, value, least)
        self._problem, self._seed = problem, seed
        self._settings = settings or PackSettings()
        self._ranks, self._micro_batches = ranks, micro_batches
        self._oversized = problem.oversized()
        self._sample_ids = sample_ids
        if len(problem) == 0:
            raise InfeasibleError("there is no sample to pack; give a table that has some")
        if len(self._oversized) and (on_oversized == "raise" or len(self._oversized) == len(problem)):
            raise self._exceeding()
        self._epoch = self._first_step = self._next_step = 0
        self._past: list[Stretch] = []
        self._extra: dict[int, list[int]] = {}
        self._epochs: dict[int, tuple[Packs, StepGroups]] = {}
        self._num_steps: dict[int, int] = {}
        self._lock = threading.RLock()

    @property
    def oversized(self) -> NDArray[np.int64]:
        """int64, rows no pack can hold; no step has them."""
        return self._oversized

    def left_out(self) -> list[tuple[str, str]]:
        """Name of each oversized sample and what it exceeds."""
        return [(self._name(row), self._problem.why_oversized(row)) for row in self._oversized.tolist()]

    @property
    def ranks(self) -> int:
        """Data-parallel ranks."""
        return self._ranks

    @property
    def micro_batches(self) -> int:
        """Packs each rank runs in an optimizer step."""
        return self._micro_batches

    @property
    def epoch(self) -> int:
        """The epoch of the last step consumed, 0 at first."""
        return self._epoch

    @property
    def next_step(self) -> int:
        """The first step not yet consumed."""
        return self._next_step

    @property
    def steps_per_epoch(self) -> int:
        """Steps of the epoch the next step belongs to; another may have one more or less, since its packs differ."""
        return self.steps_in(self.epoch_of(self._next_step))

    def steps_in(self, epoch: int) -> int:
        """Optimizer steps of an epoch, the same on every rank; of the present one those on other ranks included."""
        with self._lock:
            if epoch not in self._num_steps:
                self._dealt(epoch)
            return self._num_steps[epoch] + (self._past_steps() if epoch == self._epoch else 0)

    def total_steps(self, epochs: int) -> int:
        """Optimizer steps until ``epochs`` epochs are done, for a learning-rate schedule; packs every one of them."""
        return self._first_step + sum(self.steps_in(epoch) for epoch in range(self._epoch, epochs))

    def epoch_of(self, step: int) -> int:
        """The epoch a step belongs to."""
        with self._lock:
            return self._locate(step)[0]

    def end_of_epoch(self, step: int) -> int:
        """The first step of the epoch after that of ``step``."""
        with self._lock:
            epoch, first = self._locate(step)
            return first + self.steps_in(epoch)

    def step(self, step: int) -> PackStep:
        """Packs of an optimizer step, replacements last.

        Raises:
            LoaderError: the step ran before the run was resumed on other ranks.
        """
        with self._lock:
            epoch, first = self._locate(step)
            packs, groups = self._dealt(epoch)
            if epoch == self._epoch:
                first += self._past_steps()
            begin = (step - first) * self._micro_batches
            if begin < 0:
                raise LoaderError(f"step {step} ran on another number of ranks; the first that can be made is {first}")
            chosen = slice(begin, begin + self._micro_batches)
            filled = packs.take(groups.pack[chosen].ravel())
            zero_loss = groups.zero_loss[chosen].ravel()
            return self._with_extra(PackStep(packs=filled, zero_loss=zero_loss, ranks=self._ranks), step)

    def rows(self, step: int) -> NDArray[np.int64]:
        """Rows of the table that are trained on in ``step``."""
        return self.step(step).rows

    def pack_of(self, step: int) -> NDArray[np.int64]:
        """int64, pack of each of ``rows(step)``; pack p is dealt to rank ``p % ranks``, micro-batch ``p // ranks``."""
        return self.step(step).slots

    def replace(self, *, bad_rows: list[int], in_step: int) -> list[int]:
        """Add one other sample for each bad one to ``in_step``, a pack each; returns their rows.

        They run in micro-batches of their own, so that no cap is passed. Drawn from (seed, step, row).
        """
        fitting = self._problem.fitting()
        chosen: list[int] = []
        for row in bad_rows:
            draw = np.random.default_rng([self._seed, _REPLACE, in_step, row])
            order = draw.permutation(fitting)[: 2 * len(bad_rows) + 1]
            chosen.append(first_other(order, bad=bad_rows, taken=chosen))
        with self._lock:
            self._extra.setdefault(in_step, []).extend(chosen)
        return chosen

    def consumed(self, step: int) -> None:
        """Note that ``step`` has been trained on."""
        with self._lock:
            epoch, first = self._locate(step)
            if epoch != self._epoch:
                self._past = []
            self._epoch, self._first_step, self._next_step = epoch, first, step + 1
            self._extra = {later: rows for later, rows in self._extra.items() if later > step}

    def start_epoch(self, epoch: int) -> None:
        """Go to the beginning of ``epoch``, whatever was consumed; steps are counted on from the next one."""
        with self._lock:
            self._epoch, self._first_step, self._past = epoch, self._next_step, []
            self._epochs.clear()
            self._num_steps.clear()

    def state_dict(self) -> dict[str, Any]:
        """What was consumed; small whatever the dataset."""
        with self._lock:
            done = self._next_step - self._first_step - self._past_steps()
            stretches = [*self._past, Stretch(self._ranks, self._micro_batches, done)]
            return {
                "epoch": self._epoch,
                "first_step": self._first_step,
                "next_step": self._next_step,
                "stretches": [asdict(stretch) for stretch in stretches],
                "extra": {str(step): rows for step, rows in self._extra.items()},
                **self._identity(),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the steps that were consumed, on as many ranks as this sampler has.

        Raises:
            CheckpointError: the state was made with other samples, caps, settings or another seed.
        """
        if not isinstance(state, Mapping) or "stretches" not in state:
            raise CheckpointError("the checkpoint was made without packing; resume it without, too")
        for name, mine in self._identity().items():
            if state.get(name) != mine:
                raise CheckpointError(
                    f"the checkpoint's packs were made with {name}={state.get(name)}, now it is {mine}; resume with "
                    "the same table, caps, packing settings and seed (the number of ranks may differ)"
                )
        try:
            self._go_on_after(state)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"the state of the packs is not whole ({type(error).__name__}: {error}); resume from another checkpoint"
            ) from error

    def _go_on_after(self, state: Mapping[str, Any]) -> None:
        stretches = [Stretch(**entry) for entry in state["stretches"]]
        epoch, first_step, next_step = (int(state[name]) for name in ("epoch", "first_step", "next_step"))
        extra = {int(step): list(rows) for step, rows in state["extra"].items()}
        with self._lock:
            same_ranks = (stretches[-1].ranks, stretches[-1].micro_batches) == (self._ranks, self._micro_batches)
            self._past = [s for s in (stretches[:-1] if same_ranks else stretches) if s.steps]
            self._epoch, self._first_step, self._next_step, self._extra = epoch, first_step, next_step, extra
            self._epochs.clear()
            self._num_steps.clear()

    def _name(self, row: int) -> str:
        return f"in row {row}" if self._sample_ids is None else self._sample_ids[row]

    def _exceeding(self) -> InfeasibleError:
        row, count = int(self._oversized[0]), len(self._oversized)
        needed = ", ".join(f"{name} {cap}" for name, cap in smallest_caps(self._problem, self._oversized).items())
        return InfeasibleError(
            f"sample {self._name(row)}: {self._problem.why_oversized(row)} ({count} of {len(self._problem)} samples "
            f"exceed one); raise the caps (all fit at {needed}), or skip oversized samples"
        )

    def _identity(self) -> dict[str, Any]:
        return {"seed": self._seed, "table_and_caps": self._problem.digest(), "settings": asdict(self._settings)}

    def _past_steps(self) -> int:
        return sum(stretch.steps for stretch in self._past)

    def _locate(self, step: int) -> tuple[int, int]:
        """Epoch of a step and the first step of that epoch."""
        epoch, first = self._epoch, self._first_step
        if step < first:
            raise LoaderError(f"step {step} lies before the present epoch, which began at step {first}")
        while step >= first + self.steps_in(epoch):
            first += self.steps_in(epoch)
            epoch += 1
        return epoch, first

    def _dealt(self, epoch: int) -> tuple[Packs, StepGroups]:
        """Packs of an epoch and the groups they still run in."""
        if epoch not in self._epochs:
            packs = pack_epoch(self._problem, self._settings, seed=self._seed, epoch=epoch)
            groups = deal_after(
                packs.sums(self._problem.loads),
                self._past if epoch == self._epoch else (),
                ranks=self._ranks,
                micro_batches=self._micro_batches,
                window=self._settings.window if self._settings.method == "best" else 1,
                seed=[self._seed, epoch, _DEAL],
            )
            self._num_steps[epoch] = len(groups) // self._micro_batches
            while len(self._epochs) >= _EPOCHS_KEPT:
                del self._epochs[min(self._epochs)]
            self._epochs[epoch] = packs, groups
        return self._epochs[epoch]

    def _with_extra(self, step: PackStep, number: int) -> PackStep:
        """Replacements as packs of one sample, in whole micro-batches."""
        extra = self._extra.get(number, [])
        if not extra:
            return step
        copies = -len(extra) % self._ranks
        rows = np.array(extra + extra[:1] * copies, dtype=np.int64)
        alone = Packs(rows=rows, offsets=np.arange(len(rows) + 1, dtype=np.int64))
        padding = np.arange(len(rows)) >= len(extra)
        return PackStep(
            packs=Packs.joined([step.packs, alone]),
            zero_loss=np.concatenate([step.zero_loss, padding]),
            ranks=self._ranks,
        )
