"""What balance does beside the loss: exact tensors, dtypes, order of steps, resume, reports."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.runtime.balanced_loop import EAGER, balancer_of, costs_of
from tests.runtime.host_batches import HostData
from tests.runtime.step_cases import MIXED

from trimtab.planning.settings import PlanSettings
from trimtab.runtime.balance_report import TensorBoardLogger
from trimtab.runtime.balanced_step import BalancedStep
from trimtab.runtime.balancer import BatchBalancer
from trimtab.runtime.balancer_settings import BalancerSettings
from trimtab.runtime.depack import depack
from trimtab.runtime.host_batch import HostLayout
from trimtab.runtime.sample_exchange import row_counts, sample_bytes
from trimtab.runtime.sample_placement import place_samples
from trimtab.runtime.step_metadata import StepMetadata, gather_metadata
from trimtab.schema.costs import Costs
from trimtab.testing import run_threads

LONG = ((131_072, ()), (4_000, ()), (6_000, ()))


@pytest.fixture(scope="module")
def data() -> HostData:
    return HostData("qwen2_5_vl", MIXED, dtype=torch.float32)


def samples_in(batch: dict[str, Any], data: HostData) -> list[tuple[Any, ...]]:
    """What identifies each sample of a batch: its tokens, labels and pixels, to the bit."""
    layout = balancer_of(data, None)._layout  # type: ignore[arg-type]
    found = []
    for sample in depack(batch, layout).samples:
        parts = [sample.tensors[key] for key in ("input_ids", "labels", "pixel_values") if key in sample.tensors]
        found.append(tuple(part.numpy().tobytes() for part in parts))
    return found


@pytest.mark.parametrize("form", ["padded", "packed"])
def test_every_sample_arrives_once_and_bit_for_bit(data: HostData, form: str) -> None:
    """Destinations interleave: every rank sends to and receives from several."""
    make = data.padded if form == "padded" else data.packed
    rows = [[0, 1, 2], [3, 4], [5], [6]]

    def run(group: dist.ProcessGroup) -> list[tuple[Any, ...]]:
        settings = BalancerSettings(threshold=0, every_rank_encodes=False)
        step = balancer_of(data, group, settings).balance([make(rows[group.rank()])])
        assert step.record is not None
        assert step.record.moved_samples
        return samples_in(step.micro_batches[0], data)

    found = [sample for rank in run_threads(4, run) for sample in rank]
    given = [sample for each in rows for sample in samples_in(make(each), data)]
    assert sorted(found) == sorted(given)


def test_a_batch_that_stays_is_the_hosts_own_object(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> bool:
        batch = data.padded([group.rank()])
        step = balancer_of(data, group, BalancerSettings(threshold=0.9, every_rank_encodes=False)).balance([batch])
        return step.micro_batches[0] is batch

    assert run_threads(2, run) == [True, True]


def test_loss_weights_and_keys_of_the_hosts_own_travel(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> tuple[float, list[int], list[float]]:
        rows = [1, 3, 5] if group.rank() == 0 else [4]
        batch = data.padded(rows)
        batch["loss_weights"] = batch["labels"].ne(-100) * 0.5
        batch["teacher_id"] = torch.tensor(rows)
        step = balancer_of(data, group, rows={"teacher_id": "samples"}).balance([batch])
        kept = step.micro_batches[0]
        for row, teacher in enumerate(kept["teacher_id"].tolist()[: len(kept["input_ids"])]):
            length = len(data.samples.tokens[teacher]) if teacher else 0
            assert torch.equal(kept["input_ids"][row, :length], data.samples.tokens[teacher][:length])
        return step.denominator, kept["teacher_id"].tolist(), step.loss_weights

    found = run_threads(2, run)
    assert [denominator for denominator, _, _ in found] == [4.0, 4.0]
    assert sorted(teacher for _, teachers, _ in found for teacher in teachers if teacher) == [1, 3, 4, 5]
    assert sum(sum(weights) for _, _, weights in found) == 4.0


def test_whole_number_dtypes_that_differ_are_widened_and_masks_may_be_boolean(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> list[torch.dtype]:
        batch = data.padded([0, 2, 3] if group.rank() == 0 else [5])
        if group.rank() == 0:
            batch["image_grid_thw"] = batch["image_grid_thw"].int()
            batch["attention_mask"] = batch["attention_mask"].bool()
        step = balancer_of(data, group).balance([batch])
        return [step.micro_batches[0][key].dtype for key in ("attention_mask", "pixel_values_videos")]

    assert run_threads(2, run)[1] == [torch.int64, torch.float32]


def test_half_precision_pixels_move(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> torch.dtype:
        batch = data.padded([0, 3, 6] if group.rank() == 0 else [4])
        if "pixel_values" in batch:
            batch["pixel_values"] = batch["pixel_values"].bfloat16()
        step = balancer_of(data, group).balance([batch])
        assert step.record is not None
        assert step.record.moved_bytes
        dtype: torch.dtype = step.micro_batches[0]["pixel_values"].dtype
        return dtype

    assert run_threads(2, run) == [torch.bfloat16] * 2


def test_one_sample_of_131072_tokens() -> None:
    data = HostData("qwen2_5_vl", LONG, dtype=torch.float32)

    def run(group: dist.ProcessGroup) -> list[int]:
        step = balancer_of(data, group).balance([data.packed([0, 1] if group.rank() == 0 else [2])])
        lengths: list[int] = np.diff(step.micro_batches[0]["cu_seqlens"].numpy()).tolist()
        return lengths

    assert run_threads(2, run) == [[131_072], [4_000, 6_000]]


@pytest.mark.parametrize("cost", [0, 7])
def test_equal_and_zero_costs_and_empty_samples(data: HostData, cost: int) -> None:
    def costs(batch: Any) -> Costs:
        return Costs(language_ns=np.full(len(batch), cost), vision_frame_ns=np.zeros(batch.num_visuals, dtype=np.int64))

    def run(group: dist.ProcessGroup) -> int:
        batch = data.padded([1, 4] if group.rank() == 0 else [1])
        if group.rank() == 0:
            batch["attention_mask"][1] = 0
            batch["labels"][1] = -100
        step = balancer_of(data, group, cost_model=costs).balance([batch])
        return len(step.micro_batches[0]["input_ids"])

    assert sum(run_threads(2, run)) == 3


def metadata_of(ranks: int, rows: int, form: Any) -> StepMetadata:
    draw = np.random.default_rng(0)
    count = ranks * rows
    patches = np.full(count, 1 << 24)
    visuals = np.stack(
        [np.zeros(count), np.ones(count), patches >> 12, np.full(count, 1 << 12), patches, patches >> 2], 1
    )
    return StepMetadata(
        rank=np.repeat(np.arange(ranks), rows),
        micro_batch=np.zeros(count, dtype=np.int64),
        tokens=draw.lognormal(8, 1, count).astype(np.int64) + (patches >> 2),
        loss_tokens=np.ones(count, dtype=np.int64),
        loss_weight=np.ones(count),
        visual_offsets=np.arange(count + 1),
        visuals=visuals.astype(np.int64),
        held=(1,) * ranks,
        form=form,
        merge_size=2,
    )


def test_a_thousand_ranks_and_buffers_beyond_32_bits_are_counted_right(data: HostData) -> None:
    layout = balancer_of(data, None)._layout  # type: ignore[arg-type]

    def run(group: dist.ProcessGroup) -> Any:
        parts = [depack(data.padded([0, 3]), layout)]
        found = gather_metadata(parts, layout, group=group, step=0, stream=0, multiple=1, error=None)
        assert found is not None
        return found.form

    metadata = metadata_of(1024, 2, run_threads(1, run)[0])
    values = data.samples.patch_dim
    assert (sample_bytes(metadata, layout) > (1 << 24) * values * 4 - 1).all()
    assert row_counts(metadata, layout, ("pixel_values",)).sum() == 2048 << 24
    began = time.process_time()
    placement = place_samples(metadata, layout, costs_of, 1024, EAGER, moving=True)
    assert time.process_time() - began < 5
    assert placement.step_ns <= placement.current_step_ns


def test_a_length_ratio_is_kept_or_the_batch_left_alone(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> list[str]:
        settings = BalancerSettings(threshold=0, length_ratio=1.0)
        step = balancer_of(data, group, settings).balance([data.padded([0, 1] if group.rank() == 0 else [5])])
        assert step.record is not None
        return [step.record.reason]

    assert run_threads(2, run)[0] in (["no plan within length ratio 1"], [""])


@pytest.mark.parametrize("background", [False, True])
def test_steps_pair_in_order_however_late_a_rank_is(data: HostData, background: bool) -> None:
    def run(group: dist.ProcessGroup) -> list[float]:
        def host() -> Any:
            for step in range(4):
                time.sleep(0.02 * ((step + group.rank()) % 3))
                yield data.padded([step, (step + group.rank()) % 7])

        settings = BalancerSettings(threshold=0, background=background)
        return [step.denominator for step in balancer_of(data, group, settings).steps(host())]

    found = run_threads(3, run)
    assert found == [[12.0] * 4] * 3


def test_a_background_failure_reaches_the_consumer_in_its_place(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> int:
        def host() -> Any:
            yield data.padded([0])
            if group.rank() == 1:
                raise OSError("gone")
            yield data.padded([1])

        steps = balancer_of(data, group, BalancerSettings(background=True)).steps(host())
        next(steps)
        with pytest.raises(Exception, match="gone"):
            next(steps)
        return 1

    assert run_threads(2, run) == [1, 1]


def test_a_training_and_an_evaluation_loader_take_turns(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> list[float]:
        train = balancer_of(data, group).steps([data.padded([row, 3]) for row in range(3)])
        found = []
        for step in train:
            evaluation = balancer_of(data, group, name="eval").steps([data.padded([4]), data.padded([5])])
            found += [step.denominator, *(each.denominator for each in evaluation)]
        return found

    assert run_threads(2, run)[0] == [8.0, 4.0, 4.0] * 3


class StatefulLoader:
    """Counts what it gave, as torchdata's StatefulDataLoader does."""

    def __init__(self, data: HostData) -> None:
        self.data, self.at = data, 0

    def __iter__(self) -> Any:
        while self.at < 6:
            self.at += 1
            yield self.data.padded([self.at])

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_resume_goes_on_after_what_was_consumed_in_the_middle_of_warm_up_too(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> tuple[list[Any], list[Any]]:
        settings = BalancerSettings(threshold=0, warmup_steps=3)

        def moved(balancer: BatchBalancer, steps: Any) -> list[Any]:
            return [(step.index, step.record.mode, step.record.applied) for step in steps]

        whole = balancer_of(data, group, settings)
        expected = moved(whole, whole.steps(StatefulLoader(data)))
        first = balancer_of(data, group, settings)
        steps = first.steps(StatefulLoader(data))
        found = moved(first, [next(steps), next(steps)])
        state = first.state_dict()
        steps.close()
        resumed = balancer_of(data, group, settings)
        resumed.load_state_dict(state)
        return expected, found + moved(resumed, resumed.steps(StatefulLoader(data)))

    for expected, found in run_threads(2, run):
        assert found == expected


def test_the_state_is_what_was_consumed_not_what_was_prepared(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> list[Any]:
        balancer = balancer_of(data, group, BalancerSettings(background=True))
        found = []
        for _ in balancer.steps(StatefulLoader(data)):
            time.sleep(0.01)  # the next step is prepared meanwhile
            found.append(balancer.state_dict())
        return found

    assert run_threads(2, run)[0] == [{"steps": count, "host": {"at": count}} for count in range(1, 7)]


def test_observing_moves_nothing_and_says_what_balance_would_gain(data: HostData, capsys: Any) -> None:
    def run(group: dist.ProcessGroup) -> tuple[bool, float]:
        batch = data.padded([0, 3, 6] if group.rank() == 0 else [4])
        balancer = balancer_of(data, group, BalancerSettings(mode="observe", verbose=True))
        steps = list(balancer.steps([batch]))
        assert steps[0].record is not None
        return steps[0].micro_batches[0] is batch, steps[0].record.gain

    assert [same for same, _ in run_threads(2, run)] == [True, True]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2
    assert "applied 0 of 1 (only observed)" in printed[0]
    assert "would bring the mean step ratio" in printed[1]


def test_scalars_reach_tensorboard_step_by_step(data: HostData) -> None:
    class Writer:
        def __init__(self) -> None:
            self.written: list[tuple[str, int]] = []

        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            self.written.append((tag, global_step))

    def run(group: dist.ProcessGroup) -> list[tuple[str, int]]:
        writer = Writer()
        balancer = balancer_of(data, group, logger=TensorBoardLogger(writer, first_step=5))
        for _ in balancer.steps([data.padded([0]), data.padded([1])]):
            pass
        return writer.written

    first, other = run_threads(2, run)
    assert ("balance/step_ratio", 6) in first
    assert ("balance/gain", 5) in first
    assert other == []


def test_a_loss_that_is_never_scaled_is_told(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> list[str]:
        rows = [0, 3, 6] if group.rank() == 0 else [4]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in balancer_of(data, group).steps([data.padded(rows)] * 3):
                pass
        return [str(each.message) for each in caught]

    assert "loss_scale" in run_threads(1, lambda group: ["loss_scale"])[0][0]
    texts = [text for rank in run_threads(2, run) for text in rank if "loss_scale" in text]
    assert texts


def test_loss_scales_of_means_and_sums() -> None:
    step = BalancedStep(
        index=0, micro_batches=[], loss_weights=[6.0, 2.0], totals=lambda: (16.0, 3), ranks=4
    )  # fmt: skip
    assert step.loss_scale(0) == 4 * 6 / 16
    assert step.loss_scale(1, reduction="sum") == 4 / 16
    assert step.loss_scale(1, reduction="sum", gradients_are_averaged=False) == 1 / 16
    assert step.sequences == 3


def test_tensor_parallel_peers_stay_identical(data: HostData) -> None:
    """Two data-parallel groups of peers that load the same batches: each plans by itself, and alike."""
    rows = [[0, 3, 6], [4]]

    def run(group: dist.ProcessGroup) -> dict[str, torch.Tensor]:
        batch = data.padded(rows[group.rank()])
        return balancer_of(data, group).balance([batch]).micro_batches[0]

    for one, peer in zip(run_threads(2, run), run_threads(2, run), strict=True):
        assert one.keys() == peer.keys()
        assert all(torch.equal(one[key], peer[key]) for key in one if isinstance(one[key], torch.Tensor))


def test_equal_counts_of_the_host_are_kept(data: HostData) -> None:
    def run(group: dist.ProcessGroup) -> int:
        settings = BalancerSettings(threshold=0, plan=PlanSettings(equal_counts=True, balance_vision=False))
        step = balancer_of(data, group, settings).balance([data.packed([0, 3, 6] if group.rank() == 0 else [1, 4, 5])])
        return len(step.micro_batches[0]["cu_seqlens"]) - 1

    assert run_threads(2, run) in ([3, 3], [4, 3], [3, 4])


def test_layouts_are_bound_to_a_config(data: HostData) -> None:
    layout: HostLayout = balancer_of(data, None)._layout  # type: ignore[arg-type]
    assert layout.merge_size == 2
    assert set(layout.keys) >= {"input_ids", "pixel_values", "video_grid_thw", "second_per_grid_ts"}
