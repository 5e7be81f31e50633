"""Predicted time of steps in which every rank waits for the slowest, and the gain of packs over plain batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import SettingsError
from trimtab.planning.packing.metrics import dist_ratio
from trimtab.planning.packing.packs import Packs
from trimtab.planning.packing.plain_batches import random_batches
from trimtab.planning.packing.sample_loads import DeviceLoads, SampleLoads
from trimtab.planning.packing.settings import PackSettings
from trimtab.planning.packing.step_matching import StepGroups, match_steps

_WORTH_IT = 1.02


def deal(loads: DeviceLoads, ranks: int, settings: PackSettings, rng: np.random.Generator) -> StepGroups:
    """Packs to ranks as the method of ``settings`` does: matched ("best"), or in their order ("isf")."""
    window = settings.window if settings.method == "best" else 1
    return match_steps(loads.columns(), ranks, window, rng)


def deal_in_order(batches: int, ranks: int) -> StepGroups:
    """Batch after batch to rank after rank, the rest that fills no step dropped, as data loaders do."""
    pack = np.arange(batches // ranks * ranks, dtype=np.int64).reshape(-1, ranks)
    return StepGroups(pack=pack, zero_loss=np.zeros(pack.shape, dtype=np.bool_))


def dist_by_load(loads: DeviceLoads, groups: StepGroups) -> dict[str, float | None]:
    """Dist ratio of "vision" (patches), "language" (tokens) and "cost" (predicted time, None without a model).

    Padding packs count as the work they are: their rank runs them.
    """
    return {
        "vision": dist_ratio(loads.vision[groups.pack]),
        "language": dist_ratio(loads.language[groups.pack]),
        "cost": None if loads.cost is None else dist_ratio(loads.cost[groups.pack]),
    }


def work_per_sample(loads: DeviceLoads, groups: StepGroups, counts: NDArray[np.int64]) -> float:
    """Time of all steps, the slowest rank of each, over the samples trained on; counts are samples of each pack [P]."""
    samples = int(counts[groups.real()].sum())
    return float(loads.work[groups.pack].max(axis=1, initial=0).sum()) / max(1, samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingGain:
    """What packing is predicted to gain.

    Attributes:
        gain: time of plain random batches over time of packs, for the same samples.
        batch: samples in a plain batch.
        unit: what time is predicted from: "cost" (a model's), or "tokens".
    """

    gain: float
    batch: int
    unit: str

    @property
    def pays(self) -> bool:
        """Whether it is more than noise."""
        return self.gain >= _WORTH_IT

    def __str__(self) -> str:
        basis = "predicted cost" if self.unit == "cost" else "tokens alone (no model given)"
        if self.pays:
            return f"{self.gain:.2f}x as fast as random batches of {self.batch}, by {basis}"
        return (
            f"packing would not pay: {self.gain:.2f}x as fast as random batches of {self.batch}, by {basis}; "
            "keep plain batches, loosen the caps or choose another method"
        )


def packing_gain(
    samples: SampleLoads, packs: Packs, *, batch: int, ranks: int, settings: PackSettings, seed: int
) -> PackingGain:
    """Compare packs with padded random batches of the samples they hold, on as many ranks.

    Args:
        samples: loads of all samples; those in no pack are left out of the batches too.
        packs: packs of their rows.
        batch: samples in a plain batch.
        ranks: data-parallel ranks.
        settings: how packs are dealt.
        seed: of the plain batches.

    Raises:
        SettingsError: the packed samples do not fill one step of plain batches.
    """
    packed = samples.take(np.sort(packs.rows))
    if batch < 1 or len(packed) < batch * ranks:
        raise SettingsError(
            f"{len(packed)} packed samples do not fill a step of {ranks} batches of {batch}; compare with at least 1 "
            f"sample and at most {len(packed) // ranks} a batch"
        )
    plain = random_batches(len(packed), batch, np.random.default_rng([seed, 0]))
    plain_work = work_per_sample(packed.of_padded(plain), deal_in_order(len(plain), ranks), plain.counts)
    loads = samples.of_packs(packs)
    groups = deal(loads, ranks, settings, np.random.default_rng([seed, 1]))
    gain = plain_work / max(1e-9, work_per_sample(loads, groups, packs.counts))
    return PackingGain(gain=gain, batch=batch, unit="tokens" if loads.cost is None else "cost")
