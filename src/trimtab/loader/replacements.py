"""Other samples for those that could not be loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trimtab.loader.step_source import StepSource
from trimtab.schema.skipped import SkippedSample

BadRow = tuple[int, str, str]
"""Row of the metadata table, sample id, reason."""


def draw_replacements(
    sampler: StepSource, bad: Sequence[BadRow], *, in_step: int, name_of: Callable[[int], str]
) -> list[SkippedSample]:
    """Draw a sample for each bad one, alike on all ranks that know of the same bad ones.

    Args:
        sampler: gets the replacements.
        bad: what could not be loaded.
        in_step: a step that no rank has planned yet; it may lie after the run's last one.
        name_of: sample id of a row.
    """
    rows = sampler.replace(bad_rows=[row for row, _, _ in bad], in_step=in_step)
    return [
        SkippedSample(sample_id=name, reason=why, replacement=name_of(row), joins_step=in_step)
        for (_, name, why), row in zip(bad, rows, strict=True)
    ]
