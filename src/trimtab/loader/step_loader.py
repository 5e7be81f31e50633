"""Prepares steps in the background and hands them out once all ranks have agreed on them."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trimtab.loader.central import ship
from trimtab.loader.preparer import PendingStep, PreparedStep, StepPreparer, without_loss
from trimtab.loader.replacements import draw_replacements
from trimtab.loader.settings import LoaderSettings
from trimtab.loader.step_planner import PlannedStep, StepPlanner
from trimtab.loader.step_source import StepSource
from trimtab.runtime.agreement import BadSample, agree_on_step
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.schema.skipped import SkippedSample


@dataclass(frozen=True, eq=False, kw_only=True)
class LoadedStep:
    """A step all ranks agreed on.

    Attributes:
        planned: the step and its plan.
        packs: this rank's packs by micro-batch.
        denominator: global sum of loss weights, from the loaded samples.
        bad_samples: samples that run with loss weight 0, on any rank, and what replaces them.
        decoded: runs of frames decoded on this rank for this step.
        wait_ms: how long this rank waited for its own data, shipping from rank 0 included.
        received_bytes: tensor bytes another rank shipped to this one.
    """

    planned: PlannedStep
    packs: list[PackedBatch]
    denominator: float
    bad_samples: list[SkippedSample]
    decoded: int
    wait_ms: float
    received_bytes: int


class StepLoader:
    """Iterates over steps from where the sampler stands; every ``next`` is a collective of ``group``."""

    def __init__(
        self,
        *,
        sampler: StepSource,
        planner: StepPlanner,
        preparer: StepPreparer | None,
        settings: LoaderSettings,
        group: dist.ProcessGroup,
        last_step: int,
    ) -> None:
        """Start preparing.

        Args:
            sampler: which samples form a step.
            planner: where they run.
            preparer: makes the packs; None on a rank that is sent its packs.
            settings: mode and prefetch.
            group: gloo group of all ranks.
            last_step: steps before this one are prepared.
        """
        self._sampler, self._planner, self._preparer = sampler, planner, preparer
        self._settings, self._group, self._last = settings, group, last_step
        self._ready: queue.Queue[PreparedStep | BaseException] = queue.Queue(maxsize=settings.prefetch)
        self._stop = threading.Event()
        self._next = sampler.next_step
        self._thread = threading.Thread(target=self._run, args=(self._next,), name="step-loader", daemon=True)
        self._thread.start()

    def next(self) -> LoadedStep:
        """The next step, agreed on by all ranks.

        Raises:
            LoaderError: a rank could not load it; raised on all.
            RankDisagreementError: ranks planned differently.
        """
        began = time.perf_counter()
        item = self._ready.get()
        wait_ms = (time.perf_counter() - began) * 1e3
        error = item if isinstance(item, BaseException) else None
        prepared = None if isinstance(item, BaseException) else item
        bad = prepared.bad_samples if prepared else []
        agreement = agree_on_step(
            group=self._group,
            step=self._next,
            digest=prepared.planned.plan.digest() if prepared else "0" * 16,
            loss_weight=_loss_weight(prepared.packs.values()) if prepared else 0.0,
            error=error,
            bad_samples=bad,
        )
        assert prepared is not None
        began = time.perf_counter()
        packs, received = self._own_packs(prepared)
        wait_ms += (time.perf_counter() - began) * 1e3
        denominator = agreement.loss_weight
        all_bad = sorted({sample for rank in agreement.bad_samples for sample in rank})
        skipped: list[SkippedSample] = []
        if all_bad:
            packs = [without_loss(pack, [row for row, _, _ in all_bad]) for pack in packs]
            denominator = self._sum(_loss_weight([packs]))
            skipped = self._replace(prepared.planned, all_bad)
        self._next += 1
        return LoadedStep(
            planned=prepared.planned,
            packs=packs,
            denominator=denominator,
            bad_samples=skipped,
            decoded=prepared.decoded,
            wait_ms=wait_ms,
            received_bytes=received,
        )

    def horizon(self, step: int) -> int:
        """The first step that no rank can have planned when all have just taken ``step``."""
        return step + 2 * self._settings.prefetch + 2

    def state_dict(self) -> dict[str, Any]:
        """What was consumed, not what was prefetched."""
        return self._sampler.state_dict()

    def close(self) -> None:
        """Stop preparing."""
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._ready.get_nowait()
            except queue.Empty:
                self._thread.join(timeout=0.05)

    def _own_packs(self, prepared: PreparedStep) -> tuple[list[PackedBatch], int]:
        rank = self._group.rank()
        if self._settings.mode == "shadow":
            return prepared.packs[rank], 0
        everyone = [prepared.packs[r] for r in range(self._group.size())] if rank == 0 else None
        packs = ship(everyone, self._group)
        return packs, sum(pack.nbytes for pack in packs) if rank else 0

    def _replace(self, planned: PlannedStep, bad: list[BadSample]) -> list[SkippedSample]:
        """Draw replacements into a step that no rank can have planned yet, be it after the last one."""
        return draw_replacements(
            self._sampler,
            [(int(planned.rows[row]), name, why) for row, name, why in bad],
            in_step=self.horizon(planned.step),
            name_of=self._planner.sample_id,
        )

    def _sum(self, value: float) -> float:
        total = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(total, group=self._group)
        return float(total)

    def _run(self, first: int) -> None:
        pending: deque[PendingStep] = deque()
        step = first
        try:
            while not self._stop.is_set() and (pending or step < self._last):
                while step < self._last and len(pending) < self._settings.prefetch:
                    pending.append(self._start(step))
                    step += 1
                self._put(self._finish(pending.popleft()))
        except BaseException as error:
            self._put(error)
        finally:
            for unfinished in pending:
                if self._preparer:
                    self._preparer.drop(unfinished)

    def _start(self, step: int) -> PendingStep:
        planned = self._planner.plan(step, self._sampler.rows(step), self._sampler.pack_of(step))
        return self._preparer.start(planned) if self._preparer else PendingStep(planned=planned)

    def _finish(self, pending: PendingStep) -> PreparedStep:
        if self._preparer:
            return self._preparer.finish(pending)
        return PreparedStep(planned=pending.planned, packs={}, bad_samples=[], decoded=0)

    def _put(self, item: PreparedStep | BaseException) -> None:
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return


def _loss_weight(packs_by_rank: Any) -> float:
    weights = [pack.loss_weights.double().sum() for packs in packs_by_rank for pack in packs]
    return float(sum(weights))
