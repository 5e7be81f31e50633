"""Packs of a stream: every sample once, a bounded buffer, exact resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pack_cases import vlm_problem

from trimtab.errors import CheckpointError, InfeasibleError, MetadataError, SettingsError
from trimtab.loader.pack_stream import PackStream, StreamStep
from trimtab.planning.packing.settings import PackSettings

CAPS: dict[str, int | None] = {"tiles": 9, "tokens": 4096}
SMALL = PackSettings(window=3, pool=16)


class Source:
    """Samples named by their number, and how many were read."""

    def __init__(self, samples: int, seed: int = 0) -> None:
        self.loads = vlm_problem(samples, seed).loads.tolist()
        self.read = 0

    def __call__(self, start: int) -> Iterator[tuple[str, list[int]]]:
        for number in range(start, len(self.loads)):
            self.read += 1
            yield str(number), self.loads[number]


def stream(source: Source, ranks: int = 4, settings: PackSettings = SMALL) -> PackStream:
    return PackStream(source, caps=CAPS, ranks=ranks, seed=0, settings=settings)


def keys(steps: list[StreamStep]) -> list[int]:
    return [int(key) for step in steps for pack in step if not pack.zero_loss for key in pack.keys]


@settings(max_examples=25)
@given(samples=st.integers(0, 150), ranks=st.integers(1, 9))
def test_every_sample_once(samples: int, ranks: int) -> None:
    steps = list(stream(Source(samples), ranks))
    assert sorted(keys(steps)) == list(range(samples))
    assert {len(step) for step in steps} <= {ranks}
    assert not any(pack.zero_loss for step in steps[:-1] for pack in step)


def test_no_pack_passes_a_cap_and_totals_are_true() -> None:
    source = Source(150)
    for step in stream(source):
        for pack in step:
            total = np.sum([source.loads[int(key)] for key in pack.keys], axis=0)
            assert pack.loads == tuple(total.tolist())
            assert pack.loads[0] <= 9
            assert pack.loads[1] <= 4096


@pytest.mark.parametrize("samples", [400, 4000])
def test_the_buffer_is_bounded_however_long_the_stream(samples: int) -> None:
    """Two samples fit a pack, three at most; a window is 12 packs, a pool 16 samples and 2 that wait."""
    source = Source(samples)
    packs, handed_out, most = stream(source), 0, 0
    for step in packs:
        handed_out += len(keys([step]))
        most = max(most, source.read - handed_out)
        assert packs.buffered == source.read - handed_out
        assert len(packs.state_dict()["waiting"]) <= 2
    assert most <= 3 * 12 + 16 + 2
    assert len(json.dumps(packs.state_dict())) < 1000


def test_no_sample_is_held_back_for_long() -> None:
    place = {key: number for number, key in enumerate(keys(list(stream(Source(4000)))))}
    assert max(place[key] - key for key in range(4000)) < 2 * (3 * 12 + 16 + 2)


def test_nothing_is_read_ahead_of_need() -> None:
    source = Source(4000)
    next(iter(stream(source)))
    assert source.read < 60


def test_packs_are_nearly_as_few_as_those_of_a_whole_epoch() -> None:
    from trimtab.planning.packing.lower_bound import lower_bound

    source = Source(4000)
    packs = sum(not pack.zero_loss for step in stream(source, settings=PackSettings(pool=256)) for pack in step)
    assert packs <= 1.01 * lower_bound(np.array(source.loads), np.array([9, 4096]))


@settings(max_examples=25)
@given(stop=st.integers(0, 20), in_flight=st.integers(0, 3))
def test_resume_on_as_many_ranks_hands_out_the_same_steps(stop: int, in_flight: int) -> None:
    whole = list(stream(Source(150)))
    first = stream(Source(150))
    handed_out = list(islice(first, stop))
    in_flight = min(in_flight, len(handed_out))
    second = stream(Source(150))
    second.load_state_dict(json.loads(json.dumps(first.state_dict(in_flight=in_flight))))
    assert handed_out[: len(handed_out) - in_flight] + list(second) == whole


@settings(max_examples=25)
@given(stop=st.integers(0, 20), ranks=st.integers(1, 9), in_flight=st.integers(0, 3))
def test_resume_on_other_ranks_is_every_sample_once(stop: int, ranks: int, in_flight: int) -> None:
    first = stream(Source(150))
    handed_out = list(islice(first, stop))
    in_flight = min(in_flight, len(handed_out))
    second = stream(Source(150), ranks)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(in_flight=in_flight))))
    seen = keys(handed_out[: len(handed_out) - in_flight]) + keys(list(second))
    assert sorted(seen) == list(range(150))


def test_more_steps_in_flight_than_remembered_are_refused() -> None:
    packs = stream(Source(150))
    assert len(list(islice(packs, 10))) == 10
    with pytest.raises(SettingsError, match="in_flight=4 exceeds the 3 steps remembered"):
        packs.state_dict(in_flight=4)


def test_an_oversized_sample_is_an_error_that_names_it() -> None:
    source = Source(50)
    source.loads[20][1] = 9000
    with pytest.raises(InfeasibleError, match="sample 20: tokens=9000 exceeds its cap of 4096"):
        list(stream(source))


def test_oversized_samples_are_reported_and_take_no_other_with_them() -> None:
    source, told = Source(50), []
    source.loads[20][1] = source.loads[49][1] = 9000
    packs = PackStream(
        source, caps=CAPS, ranks=4, seed=0, settings=SMALL, report_oversized=lambda key, why: told.append((key, why))
    )
    assert sorted([*keys(list(packs)), 20, 49]) == list(range(50))
    assert told == [(key, "tokens=9000 exceeds its cap of 4096") for key in ("20", "49")]
    assert packs.num_oversized == 2


def test_samples_with_the_wrong_loads_are_refused_by_name() -> None:
    source = Source(5)
    source.loads[3] = [1]
    with pytest.raises(MetadataError, match="sample 3: 1 loads"):
        list(stream(source))


@pytest.mark.parametrize("load", [float("nan"), float("inf"), -1])
def test_loads_that_are_no_sizes_are_refused_by_name(load: float) -> None:
    stream = PackStream(lambda start: [("odd", (load, 5))][start:], caps={"tiles": 9, "tokens": 40}, ranks=1, seed=0)
    with pytest.raises(MetadataError, match="sample odd: tiles="):
        list(stream)


def test_fractions_never_pass_a_cap() -> None:
    stream = PackStream(lambda start: [("odd", (1.9, 5))][start:], caps={"tiles": 1, "tokens": 40}, ranks=1, seed=0)
    with pytest.raises(InfeasibleError, match="tiles=2 exceeds its cap of 1"):
        list(stream)


def test_state_of_another_run_is_refused() -> None:
    with pytest.raises(CheckpointError, match="packed with settings="):
        stream(Source(5), settings=PackSettings(window=4, pool=16)).load_state_dict(stream(Source(5)).state_dict())


@pytest.mark.parametrize("change", [{"ranks": 0}, {"seed": -1}, {"settings": PackSettings(method="isf")}])
def test_settings_that_make_no_sense_are_refused(change: dict) -> None:
    with pytest.raises(SettingsError):
        PackStream(Source(5), **{"caps": CAPS, "ranks": 1, "seed": 0} | change)
