"""Layer profiles refuse what cannot be; plans derive their figures and have stable digests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trimtab.errors import MetadataError
from trimtab.schema.stages import LayerProfile, LayerSpread, RankMemory, RecomputePlan, StagePlan

COLUMNS = ("forward_ns", "backward_ns", "recompute_ns", "activation_bytes", "recomputed_bytes", "workspace_bytes")
REST = ("parameters", "state_bytes", "boundary_bytes", "boundary_ns")


def profile(**changed: Any) -> LayerProfile:
    columns: dict[str, Any] = {name: np.full(3, 5, dtype=np.int64) for name in (*COLUMNS, *REST)}
    columns |= {"names": ("a", "b", "c"), "kinds": ("vision", "language", "head")}
    return LayerProfile(**{**columns, **changed})


def plan(**changed: Any) -> StagePlan:
    made = StagePlan(
        method="joint",
        schedule="interleaved",
        ranks=2,
        chunks=2,
        micro_batches=4,
        bounds=(0, 1, 2, 3, 4),
        recompute=((), (1,), (), ()),
        in_flight=(4, 3, 2, 1),
        forward_ns=(1, 2, 3, 4),
        backward_ns=(2, 4, 6, 8),
        send_ns=(0, 0, 0),
        step_ns=100,
        lower_bound_ns=90,
        memory=(RankMemory(state=1, activations=2, transient=3), RankMemory(state=4, activations=5, transient=6)),
        memory_bytes=15,
    )
    return replace(made, **changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"forward_ns": np.array([5, 0, 5])}, r"layer b: forward_ns=0 must be at least 1"),
        ({"backward_ns": np.array([5, 5, -1])}, r"layer c: backward_ns=-1 must be at least 0"),
        ({"recomputed_bytes": np.array([6, 5, 5])}, r"layer a: recomputed_bytes=6 must be at most activation_bytes=5"),
        ({"parameters": np.array([5.0, 5, 5])}, r"parameters must be int64 of shape \[3\]"),
        ({"boundary_ns": np.array([5, 5])}, r"boundary_ns must be int64 of shape \[3\]"),
        ({"kinds": ("vision", "text", "head")}, "a kind for each layer"),
        ({"names": ("a", "b", "a")}, "names layer 'a' twice"),
        ({"names": ()}, "has no layers"),
        ({"spread": LayerSpread(forward_ns=np.ones((2, 2), int), backward_ns=np.ones((2, 3), int))}, "spread.forward"),
        ({"spread": LayerSpread(forward_ns=np.ones((1, 3), int), backward_ns=np.ones((2, 3), int))}, "as many samples"),
        ({"spread": LayerSpread(forward_ns=-np.ones((1, 3), int), backward_ns=np.ones((1, 3), int))}, "negative times"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(MetadataError, match=message):
        profile(**changed)


def test_a_plan_derives_its_figures() -> None:
    made = plan()
    assert made.rank_ns == (1 + 2 + 3 + 6, 2 + 4 + 4 + 8)
    assert made.bottleneck == 1
    assert made.bubble == pytest.approx(1 - 30 * 4 / (2 * 100))
    assert made.fits
    assert not plan(memory_bytes=14).fits


def test_digests_follow_the_plan_alone() -> None:
    assert plan().digest() == plan().digest() != plan(recompute=((), (), (2,), ())).digest()
    chosen: dict[str, Any] = {
        "names": ("a", "b"),
        "budget_bytes": 9,
        "peak_bytes": 8,
        "bytes_saved": 1,
        "time_saved_ns": 1,
    }
    plans = [RecomputePlan(recompute=np.array([first, True]), exact=True, **chosen) for first in (True, False, True)]
    assert plans[0].digest() == plans[2].digest() != plans[1].digest()
    assert plans[1].recomputing == ("b",)
