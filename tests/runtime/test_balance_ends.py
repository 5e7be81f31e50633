"""Loops that end early, ranks that disagree about being off, and failures outside a batch: no hang, nothing lost."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.runtime.balanced_loop import balancer_of
from tests.runtime.host_batches import HostData
from tests.runtime.step_cases import MIXED

from trimtab.errors import LoaderError, MetadataError, RankDisagreementError, SettingsError
from trimtab.runtime.background import in_background
from trimtab.runtime.balancer import BatchBalancer
from trimtab.runtime.balancer_settings import BalancerSettings, EncoderBalanceSettings
from trimtab.runtime.vision_balance import balance_encoder, balance_model_vision
from trimtab.schema.costs import Costs
from trimtab.testing import run_threads


@pytest.fixture(scope="module")
def data() -> HostData:
    return HostData("qwen2_5_vl", MIXED, dtype=torch.float32)


def error_of(run: Callable[[], Any]) -> Exception:
    try:
        run()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def assert_everywhere(found: list[Exception], kind: type[Exception], *texts: str) -> None:
    assert [type(error) for error in found] == [kind] * len(found), found
    assert len({str(error) for error in found}) == 1, found
    assert [text for text in texts if text not in str(found[0])] == []


class Rows(torch.nn.Module):
    """An encoder that gives a row for every four patches."""

    def forward(self, pixel_values: torch.Tensor, grid_thw: torch.Tensor) -> torch.Tensor:
        return pixel_values[::4]


class Loader:
    """A loader that can be set back, as torchdata's."""

    def __init__(self, data: HostData, rank: int, *, delay: float = 0.0) -> None:
        self.data, self.rank, self.delay, self.at = data, rank, delay, 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < 6:
            time.sleep(self.delay)
            self.at += 1
            yield self.data.padded([(self.at + self.rank) % 4])

    def state_dict(self) -> int:
        return self.at

    def load_state_dict(self, state: int) -> None:
        self.at = state


@pytest.mark.parametrize("delays", [(0.0, 0.0), (0.05, 0.0), (0.0, 0.05)])
def test_a_background_loop_left_early_goes_on_where_it_was(data: HostData, delays: tuple[float, float]) -> None:
    """Whatever the ranks' timing: each has prepared as much as the others when it stops."""

    def run(group: dist.ProcessGroup) -> list[int]:
        balancer = balancer_of(data, group, BalancerSettings(threshold=0, background=True))
        loader = Loader(data, group.rank(), delay=delays[group.rank()])
        seen = []
        for stop in (1, 3, 99):
            for step in balancer.steps(loader):
                seen.append(step.index)
                time.sleep(0.02 * group.rank())
                if len(seen) == stop:
                    break
        return seen

    assert run_threads(2, run) == [[0, 1, 2, 3, 4, 5]] * 2


def test_what_is_prepared_does_not_hang_on_timing() -> None:
    begun: list[int] = []

    def source() -> Iterator[int]:
        for item in range(9):
            begun.append(item)
            yield item

    items = in_background(source())
    assert next(items) == 0
    assert next(items) == 1
    time.sleep(0.1)
    items.close()  # type: ignore[attr-defined]
    assert begun == [0, 1, 2]


@pytest.mark.parametrize("other", ["on", "observe"])
def test_ranks_of_which_one_is_off(data: HostData, other: Any) -> None:
    def run(group: dist.ProcessGroup) -> Exception:
        settings = BalancerSettings(mode="off" if group.rank() == 0 else other)
        return error_of(lambda: list(balancer_of(data, group, settings).steps([data.padded([1])])))

    assert_everywhere(run_threads(2, run), RankDisagreementError, "mode (rank 0: 'off'", f"rank 1: '{other}')")


def test_encoder_balance_of_which_one_rank_is_off(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> Exception:
        settings = EncoderBalanceSettings(mode="off" if group.rank() == 0 else "on")
        return error_of(lambda: balance_model_vision(data.model, group, settings))

    assert_everywhere(run_threads(2, run), RankDisagreementError, "mode (rank 0: 'off', rank 1: 'on')")


def test_ranks_may_differ_in_what_they_print(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> int:
        settings = BalancerSettings(threshold=0, verbose=group.rank() == 0)
        return len(list(balancer_of(data, group, settings).steps([data.padded([group.rank()])])))

    assert run_threads(2, run) == [1, 1]


class Broken(Loader):
    """Fails on rank 1, in the place named."""

    place = ""

    def __iter__(self) -> Iterator[Any]:
        if self.rank == 1 and self.place == "iter":
            raise OSError("sampler index file missing")
        return super().__iter__()

    def state_dict(self) -> int:
        if self.rank == 1 and self.place == "state":
            raise OSError("no state to be had")
        return super().state_dict()


@pytest.mark.parametrize(("place", "text"), [("iter", "sampler index file missing"), ("state", "no state to be had")])
@pytest.mark.parametrize("background", [False, True])
def test_a_loader_that_fails_outside_a_batch(data: HostData, place: str, text: str, background: bool) -> None:
    def run(group: dist.ProcessGroup) -> Exception:
        loader = Broken(data, group.rank())
        loader.place = place
        balancer = balancer_of(data, group, BalancerSettings(background=background))
        return error_of(lambda: list(balancer.steps(loader)))

    assert_everywhere(run_threads(2, run), LoaderError, "rank 1", text)


MALFORMED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no grid": (lambda b: b.pop("image_grid_thw"), "image_grid_thw is missing"),
    "a flat grid": (lambda b: b.update(image_grid_thw=b["image_grid_thw"].reshape(-1)), "image_grid_thw is of shape"),
    "narrow pixels": (lambda b: b.update(pixel_values=b["pixel_values"][:, :-1]), "pixel_values is of shape"),
    "no tokens": (lambda b: b.pop("input_ids"), "without input_ids"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_call_under_encoder_balance_alone(case: str) -> None:
    change, text = MALFORMED[case]

    def run(group: dist.ProcessGroup) -> Exception:
        own = HostData("qwen2_5_vl", MIXED, dtype=torch.float32)
        balance_model_vision(own.model, group)
        batch = own.padded([3])
        if group.rank() == 1:
            change(batch)
        return error_of(lambda: own.model(**batch))

    assert_everywhere(run_threads(2, run), MetadataError, "encoder call 0, rank 1", text)


def halves(frames: Any) -> Any:
    return frames.prod(axis=1) / 2


ENCODER_CALLS: dict[str, tuple[Any, Any, str]] = {
    "no grid": (lambda pixels, grid: (pixels, None), None, "grid_thw is None"),
    "a grid of floats": (lambda pixels, grid: (pixels, grid.double()), None, "torch.float64"),
    "flat pixels": (lambda pixels, grid: (pixels[0], grid), None, "[patches, values]"),
    "a cost of floats": (None, halves, "frame_cost gave float64"),
    "a cost that fails": (None, lambda frames: 1 // 0, "ZeroDivisionError"),
}


@pytest.mark.parametrize("case", ENCODER_CALLS)
def test_an_encoder_called_wrongly_on_one_rank(case: str) -> None:
    change, cost, text = ENCODER_CALLS[case]

    def run(group: dist.ProcessGroup) -> Exception:
        wrong = group.rank() == 1
        encoder = Rows()
        right = lambda frames: frames.prod(axis=1)  # noqa: E731
        balance_encoder(encoder, group, merge_size=2, frame_cost=cost if cost and wrong else right)
        pixels, grid = torch.ones(16, 6), torch.tensor([[1, 4, 4]])
        given = change(pixels, grid) if change and wrong else (pixels, grid)
        return error_of(lambda: encoder(*given))

    found = run_threads(2, run)
    assert len({(type(error), str(error)) for error in found}) == 1, found
    assert "encoder call 0, rank 1" in str(found[0])
    assert text in str(found[0])


def test_labels_beyond_the_last_bound_are_not_dropped(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> Exception:
        batch = data.packed([1, 0])
        if group.rank() == 1:
            batch["cu_seqlens"] = batch["cu_seqlens"][:-1]
        return error_of(lambda: balancer_of(data, group).balance([batch]))

    assert_everywhere(run_threads(2, run), MetadataError, "rank 1", "labelled tokens", "outside every sample")


@pytest.mark.parametrize("count", [0, -1, 1.5, None])
def test_a_step_of_no_micro_batches_is_refused(data: HostData, count: Any) -> None:
    def run(group: dist.ProcessGroup) -> Exception:
        given = count if group.rank() == 1 else 1  # on one rank only: the other must not wait for it
        return error_of(lambda: list(balancer_of(data, group).steps([data.padded([1])], micro_batches=given)))

    assert_everywhere(run_threads(2, run), SettingsError, "rank 1", f"micro_batches={count}")


COSTS: dict[str, tuple[Any, str]] = {
    "floats": (1.0, "costs.language_ns is float64; give whole nanoseconds as int64"),
    "not a number": (float("nan"), "costs.language_ns is float64"),
    "negative": (-3, "costs.language_ns must not be negative"),
}


@pytest.mark.parametrize("case", COSTS)
def test_costs_that_are_none(data: HostData, case: str) -> None:
    value, text = COSTS[case]

    def costs(batch: Any) -> Costs:
        return Costs(language_ns=np.full(len(batch), value), vision_frame_ns=np.zeros(batch.num_visuals, np.int64))

    def run(group: dist.ProcessGroup) -> Exception:
        return error_of(lambda: balancer_of(data, group, cost_model=costs).balance([data.padded([1, 2])]))

    assert_everywhere(run_threads(2, run), SettingsError, text)


@pytest.mark.parametrize(
    "settings",
    [{"warmup_steps": 1.5}, {"pad_to_multiple_of": 2.5}, {"plan": None}, {"threshold": "0.1"}, {"length_ratio": "2"}],
)
def test_settings_of_the_wrong_kind_are_refused_when_made(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(settings))):
        BalancerSettings(**settings)


def test_a_config_that_is_none(data: HostData) -> None:
    with pytest.raises(SettingsError, match=r"config is a NoneType; give model\.config"):
        BatchBalancer.for_model(None, None)  # type: ignore[arg-type]


def test_a_batch_that_is_no_dictionary(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> Exception:
        return error_of(lambda: balancer_of(data, group).balance([[1, 2]]))  # type: ignore[list-item]

    assert_everywhere(run_threads(2, run), MetadataError, "a micro-batch is a list")


def test_a_step_without_any_loss_keeps_a_sum_of_losses_at_zero(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> float:
        batch = data.padded([1, 2])
        batch["labels"].fill_(-100)
        step = balancer_of(data, group).balance([batch])
        assert step.loss_scale(0, reduction="sum") * 0.0 == 0.0
        return step.denominator

    assert run_threads(2, run) == [1.0, 1.0]


def test_an_unscaled_loss_is_told_after_the_last_step_too(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> list[int]:
        host = [data.padded([0, 3, 6] if group.rank() == 0 else [4])]
        return [step.record.applied for step in balancer_of(data, group).steps(host) if step.record]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run_threads(2, run) == [[1], [1]]
    assert sum("no loss was scaled" in str(each.message) for each in caught) == 2
