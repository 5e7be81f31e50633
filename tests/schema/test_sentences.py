"""Numbers and skipped samples in sentences."""

from __future__ import annotations

from trimtab.schema.number_of import number_of
from trimtab.schema.skipped import told


def test_one_is_singular() -> None:
    assert [number_of(count, "sample") for count in (0, 1, 2000)] == ["0 samples", "1 sample", "2,000 samples"]


def test_a_skipped_sample_is_told_with_what_replaces_it() -> None:
    entry = {"step": 3, "sample_id": "a", "reason": "cut off", "replacement": "b", "joins_step": 9}
    assert told(entry, steps=10) == "step 3, a: cut off; b joins step 9"
    assert told(entry, steps=7).endswith("; b joins step 9, if the run is resumed with more than 9 steps")
