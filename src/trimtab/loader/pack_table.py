"""From a metadata table and settings to the sampler that deals its packs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trimtab.cost.schedule import CostModel
from trimtab.loader.pack_sampler import PackSampler
from trimtab.loader.pack_settings import PackingSettings
from trimtab.planning.packing.epoch import pack_epoch
from trimtab.planning.packing.problem import PackProblem
from trimtab.planning.packing.sample_loads import SampleLoads
from trimtab.planning.packing.thresholds import choose_caps
from trimtab.schema.setting_checks import check_whole
from trimtab.schema.table import MetadataTable

_RANKS_TRIED = 8
_SAMPLES_TRIED = 4096
_TRY = 201  # a stream of random numbers beside those of ``PackSampler``


def pack_table(
    table: MetadataTable,
    settings: PackingSettings,
    *,
    cost_model: CostModel | None,
    ranks: int,
    samples_per_step: int,
    seed: int,
) -> PackSampler:
    """Pack a table's samples for training.

    Args:
        table: the samples.
        settings: method and caps; caps that are not given are chosen from the table alone, so that a run resumed on
            other ranks finds the same.
        cost_model: packs of a step are alike in the time it predicts, too; None: in patches and tokens only.
        ranks: data-parallel ranks.
        samples_per_step: samples an optimizer step should hold; each rank runs as many packs as come nearest, at least
            one.
        seed: decides order and packs, with the epoch.

    Raises:
        InfeasibleError: a sample exceeds a cap and oversized samples are not skipped; names it.
        SettingsError: packing is off, or a number is too small or not whole.
    """
    for name, value, least in (("ranks", ranks, 1), ("samples_per_step", samples_per_step, 1), ("seed", seed, 0)):
        check_whole(name, value, least)
    batch = table.batch()
    samples = SampleLoads.from_batch(batch, cost_model(batch) if cost_model else None)
    patches, tokens, most = _caps(samples, settings, seed)
    problem = samples.problem(patches=patches, tokens=tokens, samples=most)
    return PackSampler(
        problem,
        ranks=ranks,
        micro_batches=_packs_of_a_rank(problem, settings, samples_per_step, ranks, seed),
        seed=seed,
        settings=settings.packer,
        on_oversized=settings.on_oversized,
        sample_ids=batch.sample_ids,
    )


def _caps(samples: SampleLoads, settings: PackingSettings, seed: int) -> tuple[int | None, int | None, int | None]:
    """Caps on patches, tokens and samples."""
    if settings.patches is not None or settings.tokens is not None:
        return settings.patches, settings.tokens, settings.max_samples
    batch = min(settings.samples_per_pack, len(samples))
    ranks = min(_RANKS_TRIED, len(samples) // max(1, batch))
    choice = choose_caps(samples, batch=batch, ranks=ranks, settings=settings.packer, seed=seed)
    return choice.patches, choice.tokens, settings.max_samples or 2 * settings.samples_per_pack


def _packs_of_a_rank(
    problem: PackProblem, settings: PackingSettings, samples_per_step: int, ranks: int, seed: int
) -> int:
    """Micro-batches of an optimizer step, from how many packs some thousand samples need."""
    fitting = problem.fitting()
    tried = np.random.default_rng([seed, _TRY]).permutation(fitting)[:_SAMPLES_TRIED]
    packs = pack_epoch(replace(problem, loads=problem.loads[tried]), settings.packer, seed=seed, epoch=0)
    return max(1, round(samples_per_step * len(packs) / (max(1, len(tried)) * ranks)))
