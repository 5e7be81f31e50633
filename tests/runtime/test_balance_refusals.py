"""Bad input on one rank is the same named error on every rank, at once; nothing is silently dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.runtime.balanced_loop import costs_of
from tests.runtime.host_batches import HostData
from tests.runtime.step_cases import MIXED

from trimtab.errors import InfeasibleError, LoaderError, MetadataError, RankDisagreementError, SettingsError
from trimtab.planning.settings import PlanSettings
from trimtab.runtime.balancer import BatchBalancer
from trimtab.runtime.balancer_settings import BalancerSettings
from trimtab.schema.costs import Costs
from trimtab.testing import run_threads

RANKS = 3
DEFAULTS = BalancerSettings()
Host = Callable[[int], Any]


@pytest.fixture(scope="module")
def data() -> HostData:
    return HostData("qwen2_5_vl", MIXED, dtype=torch.float32)


def errors(
    data: HostData, host: Host, settings: Callable[[int], BalancerSettings] | BalancerSettings = DEFAULTS,
    costs: Callable[[int], Any] = lambda rank: costs_of, name: Callable[[int], str] = lambda rank: "train",
) -> list[Exception]:  # fmt: skip
    def run(group: dist.ProcessGroup) -> Exception:
        rank = group.rank()
        chosen = settings if isinstance(settings, BalancerSettings) else settings(rank)
        balancer = BatchBalancer.for_model(data.model.config, group, chosen, cost_model=costs(rank), name=name(rank))
        try:
            for _ in balancer.steps(host(rank)):
                pass
        except Exception as error:
            return error
        raise AssertionError("nothing was raised")

    return run_threads(RANKS, run)


def changed(data: HostData, rank: int, at: int, change: Callable[[dict[str, Any]], Any]) -> list[Any]:
    batch = data.padded([2, 3] if rank == at else [rank])
    if rank == at:
        change(batch)
    return [batch]


def assert_everywhere(found: list[Exception], kind: type[Exception], *texts: str) -> None:
    assert [type(error) for error in found] == [kind] * RANKS, found
    assert len({str(error) for error in found}) == 1, found
    for text in texts:
        assert text in str(found[0]), str(found[0])


def test_a_worker_exception(data: HostData) -> None:
    def host(rank: int) -> Iterator[Any]:
        yield data.padded([rank])
        if rank == 1:
            raise OSError("disk on fire")
        yield data.padded([rank])

    assert_everywhere(errors(data, host), LoaderError, "rank 1", "disk on fire")


BAD: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a grid that matches no pixels": (lambda b: b["image_grid_thw"].add_(2), "pixel_values has"),
    "pixels cut off": (lambda b: b.update(pixel_values=b["pixel_values"][:-4]), "pixel_values has"),
    "placeholders cut off": (lambda b: b["input_ids"].clamp_(max=50), "placeholders"),
    "pixels missing": (lambda b: [b.pop("pixel_values"), b.pop("image_grid_thw")], "no pixel_values"),
    "grid missing": (lambda b: b.pop("image_grid_thw"), "image_grid_thw"),
    "not a number in a grid": (
        lambda b: b.update(image_grid_thw=b["image_grid_thw"] * torch.tensor(float("nan"))), "not a number",
    ),
    "a loss weight that is not a number": (
        lambda b: b.update(loss_weights=torch.full(b["input_ids"].shape, float("nan"))), "loss weights",
    ),
    "an unknown key": (lambda b: b.update(my_scores=torch.ones(2)), "rows={'my_scores'"),
    "a mask of token pairs": (lambda b: b.update(attention_mask=torch.ones(2, 1, 9, 9)), "attention_mask"),
    "a gap in the mask": (lambda b: b["attention_mask"][0, 3:5].zero_(), "gaps"),
    "no tokens": (lambda b: b.pop("input_ids"), "input_ids"),
    "swapped samples": (lambda b: b.update(input_ids=b["input_ids"].flip(0)), "placeholders"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_malformed_batch_on_one_rank(data: HostData, case: str) -> None:
    change, text = BAD[case]
    found = errors(data, lambda rank: changed(data, rank, 1, change))
    assert_everywhere(found, MetadataError, "balance step 0, rank 1", text)


def test_settings_that_differ(data: HostData) -> None:
    found = errors(data, lambda rank: [data.padded([rank])], lambda rank: BalancerSettings(threshold=0.1 * rank))
    assert_everywhere(found, RankDisagreementError, "differ: threshold (rank 0: 0.0, rank 1: 0.1);")


def test_floating_point_dtypes_that_differ(data: HostData) -> None:
    found = errors(
        data, lambda rank: changed(data, rank, 2, lambda b: b.update(pixel_values=b["pixel_values"].bfloat16()))
    )
    assert_everywhere(found, RankDisagreementError, "'pixel_values'", "bfloat16", "float32")


def test_a_padded_and_a_packed_rank(data: HostData) -> None:
    def host(rank: int) -> Any:
        return [data.packed([rank, 3]) if rank == 0 else data.padded([1, rank])]

    assert errors(data, host)[0].args[0].startswith("rank")
    assert all(isinstance(error, RankDisagreementError) for error in errors(data, host))


def test_a_key_some_ranks_lack(data: HostData) -> None:
    found = errors(data, lambda rank: changed(data, rank, 0, lambda b: b.pop("labels")))
    assert_everywhere(found, RankDisagreementError, "'labels'")


def test_datasets_of_unequal_length(data: HostData) -> None:
    found = errors(data, lambda rank: [data.padded([rank])] * (2 - (rank == 2)))
    assert_everywhere(found, RankDisagreementError, "rank 2: 0", "uneven_ends='share'")


def test_a_cost_model_that_differs(data: HostData) -> None:
    """Plans are compared before anything moves."""

    def costs(rank: int) -> Any:
        return lambda batch: Costs(language_ns=batch.tokens * (1000 + rank), vision_frame_ns=batch.grid_thw[:, 1] * 100)

    found = errors(data, lambda rank: [data.padded([rank, rank + 1])], costs=costs)
    assert_everywhere(found, RankDisagreementError, "rank 0 planned", "rank 1 planned")


def test_two_loaders_that_share_a_group_out_of_order(data: HostData) -> None:
    found = errors(data, lambda rank: [data.padded([rank])], name=lambda rank: "eval" if rank == 1 else "train")
    assert_everywhere(found, RankDisagreementError, "another loader")


def test_ranks_at_different_steps(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> Exception:
        balancer = BatchBalancer.for_model(data.model.config, group, cost_model=costs_of)
        balancer.load_state_dict({"steps": int(group.rank() == 1), "host": None})
        with pytest.raises(RankDisagreementError) as raised:
            next(iter(balancer.steps([data.padded([0])])))
        return raised.value

    assert_everywhere(run_threads(RANKS, run), RankDisagreementError, "checkpoint")


def test_a_sample_longer_than_the_cap(data: HostData) -> None:
    settings = BalancerSettings(plan=PlanSettings(max_tokens_per_rank=20, balance_vision=False))
    found = errors(data, lambda rank: [data.padded([rank, 3])], settings)
    assert_everywhere(found, InfeasibleError, "20")


def test_a_cap_no_arrangement_meets() -> None:
    """Three samples of ten tokens on two ranks with room for eighteen."""
    data = HostData("qwen2_5_vl", ((10, ()),) * 3, dtype=torch.float32)
    settings = BalancerSettings(plan=PlanSettings(max_tokens_per_rank=18, balance_vision=False))

    def run(group: dist.ProcessGroup) -> str:
        balancer = BatchBalancer.for_model(data.model.config, group, settings, cost_model=costs_of)
        with pytest.raises(InfeasibleError) as raised:
            balancer.balance([data.padded([0, 1] if group.rank() else [2])])
        return str(raised.value)

    assert len(set(run_threads(2, run))) == 1


def test_background_preparation_on_the_default_group_is_refused(data: HostData) -> None:
    with pytest.raises(SettingsError, match="group of its own"):
        BatchBalancer.for_model(
            data.model.config, dist.group.WORLD, BalancerSettings(background=True), cost_model=costs_of
        )


def test_a_config_without_placeholders_says_what_to_give() -> None:
    with pytest.raises(SettingsError, match="placeholders="):
        BatchBalancer.for_model({"model_type": "internvl_chat"}, None, cost_model=costs_of)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [{"mode": "maybe"}, {"threshold": 1.0}, {"length_ratio": 0.5}, {"warmup_steps": -1}, {"uneven_ends": "no"}]
)
def test_settings_out_of_range(wrong: Any) -> None:
    with pytest.raises(SettingsError, match=str(next(iter(wrong)))):
        BalancerSettings(**wrong)
