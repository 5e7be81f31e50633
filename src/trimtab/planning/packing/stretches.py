"""An epoch's packs dealt to steps, also where the number of ranks changed on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.packing.step_matching import StepGroups, match_steps


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps of an epoch that ran on the same ranks.

    Attributes:
        ranks: R.
        micro_batches: packs each rank runs in an optimizer step.
        steps: optimizer steps.
    """

    ranks: int
    micro_batches: int
    steps: int


def deal_after(
    loads: NDArray[np.int64],
    past: Sequence[Stretch],
    *,
    ranks: int,
    micro_batches: int,
    window: int,
    seed: Sequence[int],
) -> StepGroups:
    """Deal the packs that earlier stretches of the epoch left.

    The earlier deals are made again, so that a few numbers are all a resumed run needs to know.

    Args:
        loads: int64 [P, K], loads of the epoch's packs in their random order.
        past: stretches that ran.
        ranks: R from here on.
        micro_batches: packs a rank and step from here on.
        window: see ``match_steps``.
        seed: with the number of the stretch, decides the order.
    """
    left = np.arange(len(loads), dtype=np.int64)
    for number, stretch in enumerate([*past, Stretch(ranks, micro_batches, 0)]):
        groups = match_steps(
            loads[left],
            stretch.ranks,
            window,
            np.random.default_rng([*seed, number]),
            multiple=stretch.micro_batches,
        )
        dealt = StepGroups(pack=left[groups.pack], zero_loss=groups.zero_loss)
        left = dealt.real(first=stretch.steps * stretch.micro_batches)
    return dealt
