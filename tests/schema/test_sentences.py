"""Numbers in sentences."""

from __future__ import annotations

from trimtab.schema.number_of import number_of


def test_one_is_singular() -> None:
    assert [number_of(count, "sample") for count in (0, 1, 2000)] == ["0 samples", "1 sample", "2,000 samples"]
