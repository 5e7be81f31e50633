"""Caps chosen from the data, so that a pack holds about as many samples as a plain batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import SettingsError
from trimtab.planning.packing.epoch import pack_epoch
from trimtab.planning.packing.sample_loads import SampleLoads
from trimtab.planning.packing.settings import PackSettings
from trimtab.planning.packing.step_time import PackingGain, packing_gain

_LOOSENESS = (1.0, 1.1, 1.2, 1.35, 1.5)
_MAX_SAMPLES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CapChoice:
    """Caps for a data set.

    Attributes:
        patches, tokens: the caps.
        samples_per_pack: mean, on the samples tried.
        gain: predicted, on the samples tried.
    """

    patches: int
    tokens: int
    samples_per_pack: float
    gain: PackingGain


def choose_caps(samples: SampleLoads, *, batch: int, ranks: int, settings: PackSettings, seed: int) -> CapChoice:
    """Try caps somewhat above ``batch`` mean samples, on at most 4096 of them.

    Caps hold the largest sample. As in OmniBal's tool, those count whose packs hold ``batch`` to ``batch + 1`` samples
    on average, which takes as much memory as a batch; means are not rounded. Of these the caps with the largest
    predicted gain are taken; where there are none (few samples are much larger than the rest), those nearest to it.

    Args:
        samples: N samples.
        batch: samples a device would hold without packing.
        ranks: data-parallel ranks.
        settings: of the packer.
        seed: of the samples tried and their packs.

    Raises:
        SettingsError: the samples do not fill one step of plain batches.
    """
    if batch < 1 or len(samples) < batch * ranks:
        raise SettingsError(
            f"{len(samples)} samples do not fill a step of {ranks} batches of {batch}; lower the batch or the ranks"
        )
    tried = samples
    if len(samples) > max(_MAX_SAMPLES, batch * ranks):
        rows = np.random.default_rng([seed, 2]).permutation(len(samples))[: max(_MAX_SAMPLES, batch * ranks)]
        tried = samples.take(rows)
    choices = [
        _evaluate(tried, patches, tokens, batch, ranks, settings, seed)
        for patches in _candidates(samples.patches, batch)
        for tokens in _candidates(samples.tokens, batch)
    ]
    return min(choices, key=lambda choice: (_distance(choice.samples_per_pack, batch), -choice.gain.gain))


def _candidates(load: NDArray[np.int64], batch: int) -> list[int]:
    """Caps to try: multiples of what every load is a multiple of (a tile's patches), large enough for each sample."""
    unit = max(1, int(np.gcd.reduce(load)))
    wanted = [float(load.mean()) * batch * looseness for looseness in _LOOSENESS]
    return sorted({max(unit, int(load.max()), -(-int(np.ceil(cap)) // unit) * unit) for cap in wanted})


def _evaluate(
    samples: SampleLoads, patches: int, tokens: int, batch: int, ranks: int, settings: PackSettings, seed: int
) -> CapChoice:
    packs = pack_epoch(samples.problem(patches=patches, tokens=tokens), settings, seed=seed, epoch=0)
    gain = packing_gain(samples, packs, batch=batch, ranks=ranks, settings=settings, seed=seed)
    return CapChoice(patches=patches, tokens=tokens, samples_per_pack=len(samples) / len(packs), gain=gain)


def _distance(samples_per_pack: float, batch: int) -> float:
    return max(0.0, batch - samples_per_pack, samples_per_pack - (batch + 1))
