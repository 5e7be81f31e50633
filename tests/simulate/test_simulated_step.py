"""A simulated step: bounds, links that cost nothing, determinism, what each strategy changes, memory."""

from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate_cases import MODEL, free_links, job_with, result_of, small, text_workload

from trimtab.cost.cluster import load_cluster
from trimtab.cost.memory import largest_micro_batch
from trimtab.errors import InfeasibleError, SettingsError
from trimtab.planning.embedding_exchange import embedding_bytes_sent
from trimtab.planning.settings import PlanSettings
from trimtab.planning.step import plan_step
from trimtab.planning.validate import validate_plan
from trimtab.planning.workloads import generated_batch
from trimtab.simulate.decode_pool import DecodePool
from trimtab.simulate.embeddings import sent_tokens
from trimtab.simulate.job import Job
from trimtab.simulate.packed_plans import plan_as_packed
from trimtab.simulate.run import job_of, simulate
from trimtab.simulate.scenario import LoadingSettings, RolloutSettings, Scenario
from trimtab.simulate.simulated_step import PHASES
from trimtab.simulate.step import simulate_steps
from trimtab.simulate.strategies import KNOWN, strategy_named
from trimtab.simulate.timeline import Timeline, chrome_trace


def text_job(tokens: list[int], **changed: object) -> Job:
    scenario = small(**{"batch_size": len(tokens), **changed})
    return Job(scenario=scenario, architecture=MODEL, cluster=free_links(), workload=text_workload(tokens))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(16, 4000), min_size=8, max_size=24), st.sampled_from([1, 2, 4, 8]))
@pytest.mark.slow
def test_no_step_is_faster_than_the_even_share_of_its_work(tokens: list[int], ranks: int) -> None:
    job = text_job(tokens, ranks=ranks)
    costs = job.costs(job.workload.samples, job.passes)
    least = max(costs.language_ns.sum() / ranks, 0) / 1e6
    for name in ("as-is", "whole-sample", "all"):
        assert result_of(job, name).step_ms >= least - 0.001


@settings(max_examples=15, deadline=None)
@given(st.integers(16, 4000), st.integers(1, 3))
def test_more_ranks_divide_equal_samples_exactly(tokens: int, share: int) -> None:
    job = text_job([tokens] * (8 * share))
    alone = result_of(replace(job, scenario=replace(job.scenario, ranks=1, shards=1)), "all").step_ms
    for ranks in (2, 4, 8):
        on_ranks = result_of(replace(job, scenario=replace(job.scenario, ranks=ranks)), "all").step_ms
        assert on_ranks == pytest.approx(alone / ranks, rel=1e-3)


def test_a_micro_batch_takes_its_fixed_time_whatever_it_holds() -> None:
    job = text_job([500] * 16, ranks=4, micro_batch_tokens=1000)
    slower = replace(job, scenario=replace(job.scenario, micro_batch_ms=30.0))
    assert result_of(slower, "as-is").step_ms == pytest.approx(result_of(job, "as-is").step_ms + 2 * 30, abs=0.01)
    fixed = replace(job_with(task="grpo"), scenario=small(task="grpo", micro_batch_ms=30.0))
    phases, plain = result_of(fixed, "all").phases, result_of(job_with(task="grpo"), "all").phases
    assert phases["inference"] - plain["inference"] == pytest.approx(2 / 3 * (phases["update"] - plain["update"]))
    with pytest.raises(SettingsError, match="micro_batch_ms"):
        small(micro_batch_ms=-1.0)


def test_a_cap_the_trainer_would_refuse_is_refused() -> None:
    with pytest.raises(
        InfeasibleError, match="micro_batch_tokens=400 is below 500, the share of sample '0' of 500 tokens"
    ):
        simulate(text_job([500] * 16, ranks=4, micro_batch_tokens=400, strategies=("as-is",)))


@pytest.mark.parametrize("task", ["sft", "grpo"])
def test_every_strategy_gives_phases_that_add_up_and_the_same_result_again(task: str) -> None:
    job = job_with(task=task, strategies=KNOWN)
    first, second = simulate(job), simulate(job_with(task=task, strategies=KNOWN))
    assert first.to_json() == second.to_json()
    assert [row.name for row in first.strategies] == list(KNOWN)
    for row in first.strategies:
        assert set(row.phases) == set(PHASES)
        assert row.step_ms == pytest.approx(sum(row.phases.values()), abs=0.01)
        assert all(value >= 0 for value in row.phases.values())
        assert row.attention_ratio >= 1


def test_another_seed_draws_other_samples() -> None:
    assert (
        simulate(job_with(strategies=("all",))).to_json() != simulate(job_with(strategies=("all",), seed=1)).to_json()
    )


def test_links_that_take_no_time_make_no_strategy_slower() -> None:
    job = job_with(task="grpo", strategies=("verl-bucketing", "uniform-2", "all"))
    linked = {row.name: row.phases for row in simulate(job).strategies}
    free = {row.name: row.phases for row in simulate(replace(job, cluster=free_links())).strategies}
    for name, phases in free.items():
        assert all(phases[phase] <= linked[name][phase] + 1e-6 for phase in ("rollout", "inference", "update"))


def test_balance_and_loading_each_help_and_help_most_together() -> None:
    rows = {row.name: row for row in simulate(job_with(task="grpo", ranks=16, batch_size=32)).strategies}
    verl, loader, adaptive, both = (rows[n] for n in ("verl-bucketing", "loader-only", "adaptive-only", "all"))
    assert loader.phases["data"] < verl.phases["data"] / 3
    assert loader.phases["update"] == verl.phases["update"]
    assert adaptive.phases["update"] < verl.phases["update"]
    assert both.step_ms < min(loader.step_ms, adaptive.step_ms) < verl.step_ms
    assert both.attention_ratio < verl.attention_ratio


def test_a_slow_controller_is_the_step() -> None:
    """One core that decodes everything, nothing ahead: the exposed data time is all of its work."""
    loading = LoadingSettings(controller_workers=1, prefetch=0, ship_bandwidth=1e17)
    job = job_with(task="grpo", strategies=("verl-bucketing",), loading=loading, batch_size=32, steps=2)
    workload, found = job.workload, simulate(job).strategies[0]
    rows = list(islice(workload.steps(32, [job.scenario.seed, 1]), 2))
    seconds = [
        (
            workload.decode_pixels[workload.visuals_of(step.rows)] / job.cluster.host.decode_pixels
            + workload.kept_pixels[workload.visuals_of(step.rows)] / loading.preprocess_pixels
        ).sum()
        for step in rows
    ]
    assert found.phases["data"] == pytest.approx(np.mean(seconds) * 1e3, rel=1e-6)


def test_where_not_even_the_state_fits_no_cap_makes_plans_share_every_sample() -> None:
    job = text_job([8000, *[300] * 63], ranks=8, batch_size=64)
    full = replace(job, cluster=replace(load_cluster("h800"), device_memory=job.kept_bytes * 0.9))
    whole, shared = result_of(full, "whole-sample"), result_of(full, "all")
    assert whole.out_of_memory
    assert shared.out_of_memory
    assert shared.step_ms <= whole.step_ms * 1.001


def test_the_shared_cores_decode_the_longest_first() -> None:
    """As ShadowLoader's scheduler does: nothing ahead, so the exposed data time is that schedule's length."""
    settings = LoadingSettings(workers_per_rank=1, prefetch=0, preprocess_pixels=1e5)
    job = job_with(task="grpo", ranks=4, batch_size=64, loading=settings)
    job = replace(job, cluster=free_links())
    step = next(job.workload.steps(64, [job.scenario.seed, 1]))
    visuals = job.workload.visuals_of(step.rows)
    seconds = job.workload.decode_pixels[visuals] / job.cluster.host.decode_pixels
    seconds = seconds + job.workload.kept_pixels[visuals] / settings.preprocess_pixels
    longest_first = DecodePool(4).decode(0.0, np.sort(seconds)[::-1])
    assert DecodePool(4).decode(0.0, seconds) > longest_first, "or this tells nothing"
    assert result_of(job, "loader-only").phases["data"] == pytest.approx(longest_first * 1e3, rel=1e-6)


def test_the_steps_that_count_are_the_same_whatever_is_prefetched() -> None:
    """Decoding in no time: then prefetching changes nothing, and nothing else may."""
    instant = replace(load_cluster("h800"), host=replace(load_cluster("h800").host, decode_pixels=1e18))
    found = []
    for prefetch in (0, 1, 5):
        loading = LoadingSettings(prefetch=prefetch, preprocess_pixels=1e18)
        job = replace(job_with(task="grpo", loading=loading), cluster=instant)
        found.append(result_of(job, "all"))
    assert found[0].step_ms == found[1].step_ms == found[2].step_ms
    assert found[0].tokens_per_gpu_s == found[2].tokens_per_gpu_s


def test_more_replies_lengthen_rollout_inference_and_update() -> None:
    few, many = (
        simulate(job_with(task="grpo", strategies=("all",), rollout=RolloutSettings(replies=n))).strategies[0]
        for n in (2, 8)
    )
    assert all(many.phases[phase] > few.phases[phase] for phase in ("rollout", "inference", "update"))


def test_small_devices_and_hosts_overflow_and_times_are_given_all_the_same() -> None:
    cluster = load_cluster("h800")
    host = replace(cluster.host, memory=1e9)
    job = replace(job_with(task="grpo"), cluster=replace(cluster, device_memory=6e9, host=host))
    found = simulate(job)
    for row in found.strategies:
        places = {(each.where, each.phase) for each in row.out_of_memory}
        assert {("device", "update"), ("device", "rollout")} <= places
        assert row.step_ms > 0
    controllers = [row for row in found.strategies if row.name in ("verl-bucketing", "adaptive-only")]
    assert all(any(each.where == "host" for each in row.out_of_memory) for row in controllers)
    assert all(each.needed_gb > each.limit_gb for row in found.strategies for each in row.out_of_memory)


def test_enough_memory_overflows_nothing() -> None:
    assert simulate(job_with(strategies=("all",))).strategies[0].out_of_memory == []


def test_a_strategy_the_model_does_not_allow_is_left_out_with_its_reason() -> None:
    found = simulate(job_with(ranks=12, shards=12, strategies=("uniform-8", "all")))
    assert [row.name for row in found.strategies] == ["all"]
    assert "multiple of 8 ranks" in found.refused["uniform-8"]


@pytest.mark.parametrize("strategy", ["whole-sample", "as-is", "adaptive"])
def test_embeddings_are_counted_as_routing_places_them(strategy: str) -> None:
    batch = generated_batch("image-heavy", 24, 0)
    batch = batch.take(np.repeat(np.arange(24), 3))
    job = job_with()
    plan = plan_step(
        batch,
        job.costs(batch, job.passes, shared=True),
        8,
        PlanSettings(strategy=strategy, max_degree=4, max_tokens_per_micro_batch=64_000),
    )
    exact = embedding_bytes_sent(plan, batch, 1)
    if strategy == "adaptive":  # which rank holds which part of a shared sample is averaged over
        assert exact.sum() <= sent_tokens(plan, batch).sum() <= 1.5 * exact.sum()
    else:
        np.testing.assert_allclose(sent_tokens(plan, batch), exact)


def test_the_trace_has_every_rank_busy_as_long_as_its_plan_says_and_in_order() -> None:
    job = job_with(task="grpo", strategies=("all",))
    timeline = Timeline()
    steps = list(islice(simulate_steps(job, strategy_named("all"), timeline), 2))
    end = sum(step.seconds for step in steps)
    assert max(span.start + span.seconds for span in timeline.spans) == pytest.approx(end)
    for rank in range(8):
        spans = sorted((s.start, s.start + s.seconds) for s in timeline.spans if (s.group, s.lane) == ("ranks", rank))
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(spans))
    events = chrome_trace([("all", timeline)])["traceEvents"]
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"all: ranks", "all: engines", "all: links", "all: decode workers"} <= named
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in events if event["ph"] == "X")


def test_costs_may_be_measured_instead() -> None:
    job = job_with(strategies=("as-is",))
    slower = replace(job, measured=lambda batch: _doubled(job, batch))
    once, twice = (simulate(each).strategies[0].phases["update"] for each in (job, slower))
    assert twice > once * 1.2


def _doubled(job: Job, batch: object) -> object:
    costs = job.costs(batch, job.passes)  # type: ignore[arg-type]
    return replace(costs, language_ns=2 * costs.language_ns, vision_frame_ns=2 * costs.vision_frame_ns)


def test_packs_run_as_dealt_and_loongforge_balances_each_micro_batch_from_there() -> None:
    job = job_of(small(data="heavy-tail", pack_length=32_768, sync="step", batch_size=32, balance_vision=False), MODEL)
    drawn = next(job.workload.steps(32, [0], 32_768))
    batch = job.workload.samples.take(drawn.rows)
    assert drawn.pack_of is not None
    costs = job.costs(batch, job.passes)
    chosen = [PlanSettings(strategy=name, sync="step") for name in ("as-is", "loongforge")]
    as_is, forge = (plan_as_packed(batch, costs, 8, each, drawn.pack_of) for each in chosen)
    assert (as_is.rank == drawn.pack_of % 8).all()
    assert (as_is.micro_batch == forge.micro_batch).all()
    assert (as_is.micro_batch == drawn.pack_of // 8).all()
    for plan, each in zip((as_is, forge), chosen, strict=True):
        validate_plan(plan, batch, costs, each)
    rows = {row.name: row for row in simulate(job).strategies}
    assert rows["whole-sample"].step_ms <= min(rows["loongforge"].step_ms, rows["as-is"].step_ms)


def test_tensor_parallel_ranks_share_the_work_of_one() -> None:
    whole, split = (job_of(Scenario(ranks=8, batch_size=32, tensor_parallel=tp, sync="step"), MODEL) for tp in (1, 4))
    batch = whole.workload.samples.take(np.arange(32))
    alone, shared = whole.costs(batch, whole.passes), split.costs(batch, split.passes, tensor_parallel=4)
    assert (shared.language_ns > alone.language_ns / 4).all()
    assert (shared.language_ns < alone.language_ns).all()


def test_every_step_is_told_before_it_is_simulated() -> None:
    told: list[str] = []
    job = job_with(strategies=("as-is",), loading=LoadingSettings(prefetch=0), steps=2)
    simulate(job, progress=told.append)
    assert told == [f"as-is, step {step} of 3" for step in (1, 2, 3)]


def test_an_overflow_names_the_longest_sample_of_its_device() -> None:
    job = text_job([100, 1_000_000_000, 200, 300], ranks=2)
    (found,) = [each for each in result_of(job, "as-is").out_of_memory if each.phase == "update"]
    assert (found.longest, found.longest_tokens) == ("1", 1_000_000_000)
    assert str(found).endswith("; longest: sample '1', 1,000,000,000 tokens")


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("ranks", [1, 8])
def test_a_device_holds_the_micro_batch_that_plans_are_capped_by(ranks: int, recompute: bool) -> None:
    job = job_with(ranks=ranks, recompute=recompute)
    job = replace(job, cluster=replace(job.cluster, device_memory=500e9))
    held = largest_micro_batch(MODEL, job.cluster.device_memory, ranks, recompute=recompute)
    assert job.room_tokens == held > 0
