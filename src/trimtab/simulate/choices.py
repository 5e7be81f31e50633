"""Which settings of a scenario are a choice of how to run the job; the others are the job itself, or assumptions."""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.errors import SettingsError

CHOICES = frozenset(
    {
        "balance_vision",
        "loading.controller_workers",
        "loading.prefetch",
        "loading.workers_per_rank",
        "max_degree",
        "micro_batch_tokens",
        "pack_below",
        "pack_tokens",
        "pipeline.pack_tiles",
        "pipeline.pack_tokens",
        "pipeline.stages",
        "recompute",
        "rollout.tensor_parallel",
        "shards",
        "tensor_parallel",
    }
)
_NOT_SWEPT = {
    "strategies": "every run compares strategies, and a sweep takes the fastest: write strategies=[a,b] as a setting",
    "name": "it only names the report: write it as a setting",
}


def check_sweepable(names: Iterable[str]) -> None:
    """Refuse settings whose values make no two jobs.

    Raises:
        SettingsError: names the setting and what to write.
    """
    for name in names:
        if name in _NOT_SWEPT:
            raise SettingsError(f"--sweep {name}=...: {_NOT_SWEPT[name]}")


def no_choices(names: Iterable[str]) -> list[str]:
    """Those that are tabulated and never recommended."""
    return [name for name in names if name not in CHOICES]
