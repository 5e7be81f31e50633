"""The command that plans the stages of a simulated pipeline."""

from __future__ import annotations

from trimtab.simulate.command_word import word
from trimtab.simulate.job import Job

_MOST_MICRO_BATCHES = 4096  # `trimtab stages` takes no more
_TILE_TOKENS = 256
_GB = 1e9


def stages_command(job: Job) -> str:
    """``trimtab stages`` for packs at their caps, as it stands."""
    scenario, pipeline = job.scenario, job.scenario.pipeline
    tiles = 0 if job.architecture.vision is None else min(pipeline.pack_tiles, pipeline.pack_tokens // _TILE_TOKENS)
    options = {
        "model": word(scenario.model),
        "cluster": word(scenario.cluster),
        "stages": pipeline.stages,
        "microbatches": min(scenario.batch_size // scenario.data_ranks, _MOST_MICRO_BATCHES),
        "memory-gb": f"{job.memory_limit / _GB:g}",
        "tokens": pipeline.pack_tokens,
        "tiles": tiles,
        "optimizer-shards": scenario.data_ranks,
    }
    return "trimtab stages " + " ".join(f"--{name} {value}" for name, value in options.items())
