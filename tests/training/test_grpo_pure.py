"""The pure parts of GRPO: advantages, the objective and its denominators, keyed sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from trimtab.errors import SettingsError
from trimtab.training.grpo.advantages import group_advantages
from trimtab.training.grpo.objective import TokenBatch, counted, policy_objective
from trimtab.training.grpo.prompts import Prompt
from trimtab.training.grpo.replies import differences
from trimtab.training.grpo.rollout import Reply, full_sample
from trimtab.training.grpo.sampling import KeyedSampler, gumbel_noise, reply_key
from trimtab.training.grpo.settings import GRPOSettings, ObjectiveSettings, RewardSettings, RolloutSettings


def test_advantages_are_normalised_within_each_group() -> None:
    found = group_advantages(np.array([0.0, 1.0, 1.0, 2.0, 5.0, 5.0, 5.0, 5.0]), 4)
    assert found.values[:4] == pytest.approx(np.array([-1.0, 0.0, 0.0, 1.0]) * math.sqrt(2))
    assert found.values[4:].tolist() == [0.0] * 4
    assert found.equal_groups == 1


def test_rewards_that_differ_by_rounding_only_teach_nothing() -> None:
    found = group_advantages(np.array([0.1 + 0.2, 0.3, 0.3, 0.3]), 4)
    assert found.values.tolist() == [0.0] * 4
    assert found.equal_groups == 1


def test_unscaled_advantages_keep_the_rewards_unit() -> None:
    found = group_advantages(np.array([0.0, 3.0]), 2, scale=False)
    assert found.values.tolist() == [-1.5, 1.5]


def objective(aggregation: str, cuts: list[list[int]], *, kl: float = 0.0) -> tuple[float, torch.Tensor]:
    """Loss and gradient over sequences of 1, 2 and 3 tokens, in packs of the token rows given."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([1, 2, 3]).repeat_interleave(torch.tensor([1, 2, 3])).double()
    new = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    old, reference = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(2))
    advantages = torch.tensor([1.0, -0.5, -0.5, 2.0, 2.0, 2.0], dtype=torch.float64)
    settings = ObjectiveSettings(aggregation=aggregation, kl_coefficient=kl)  # type: ignore[arg-type]
    total = 0.0
    for rows in cuts:
        tokens = TokenBatch(
            old=old[rows], reference=reference[rows], advantages=advantages[rows], sequence_tokens=lengths[rows]
        )
        denominator = counted(settings.aggregation, tokens=6, sequences=3)
        share = policy_objective(new[rows], tokens, settings, denominator)
        share.loss.backward()
        total += float(share.loss.detach())
    assert new.grad is not None
    return total, new.grad


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_shares_of_any_packs_add_up_to_the_same_loss(aggregation: str) -> None:
    whole, gradient = objective(aggregation, [[0, 1, 2, 3, 4, 5]], kl=0.1)
    parts, parts_gradient = objective(aggregation, [[3, 4], [0], [5, 1, 2]], kl=0.1)
    assert parts == pytest.approx(whole, rel=1e-14)
    torch.testing.assert_close(gradient, parts_gradient, rtol=1e-13, atol=1e-15)


def test_aggregations_weigh_sequences_as_named() -> None:
    """With ratio 1 and no KL a token's gradient is -advantage times its weight."""
    weights = {}
    for aggregation in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
        lengths = torch.tensor([1.0, 2.0, 2.0])
        new = torch.zeros(3, requires_grad=True)
        tokens = TokenBatch(old=torch.zeros(3), reference=None, advantages=torch.ones(3), sequence_tokens=lengths)
        settings = ObjectiveSettings(aggregation=aggregation)  # type: ignore[arg-type]
        denominator = counted(settings.aggregation, tokens=3, sequences=2)
        policy_objective(new, tokens, settings, denominator).loss.backward()
        assert new.grad is not None
        weights[aggregation] = (-new.grad).tolist()
    assert weights["token-mean"] == pytest.approx([1 / 3] * 3)
    assert weights["seq-mean-token-mean"] == pytest.approx([1 / 2, 1 / 4, 1 / 4])
    assert weights["seq-mean-token-sum"] == pytest.approx([1 / 2] * 3)


def test_a_ratio_beyond_the_clip_range_gets_no_gradient_where_it_gained() -> None:
    new = torch.tensor([0.5, 0.5, -0.5], requires_grad=True)
    tokens = TokenBatch(
        old=torch.zeros(3), reference=None, advantages=torch.tensor([1.0, -1.0, -1.0]), sequence_tokens=torch.ones(3)
    )
    share = policy_objective(new, tokens, ObjectiveSettings(), 3)
    share.loss.backward()
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([0.0, math.exp(0.5) / 3, 0.0])
    assert share.clipped == 2


def test_the_divergence_is_zero_at_the_reference_and_positive_elsewhere() -> None:
    tokens = TokenBatch(
        old=torch.zeros(2), reference=torch.zeros(2), advantages=torch.zeros(2), sequence_tokens=torch.ones(2)
    )
    share = policy_objective(torch.tensor([0.0, 0.3]), tokens, ObjectiveSettings(kl_coefficient=1.0), 1)
    assert share.kl == pytest.approx(math.exp(-0.3) + 0.3 - 1)
    assert float(share.loss) == pytest.approx(share.kl)


def test_no_token_anywhere_gives_zero_loss() -> None:
    empty = torch.zeros(0)
    tokens = TokenBatch(old=empty, reference=None, advantages=empty, sequence_tokens=empty)
    assert float(policy_objective(empty, tokens, ObjectiveSettings(), 0).loss) == 0.0


def test_draws_follow_the_temperatures_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5])
    keys = torch.tensor([reply_key(0, 0, "sample", reply) for reply in range(40_000)])
    for temperature in (1.0, 0.7):
        sampler = KeyedSampler(keys, prompt_tokens=3, temperature=temperature, suppressed=())
        drawn = sampler(torch.zeros(len(keys), 3), logits.expand(len(keys), -1)).argmax(dim=-1)
        expected = (logits / temperature).softmax(dim=-1).double()
        expected = (expected / expected.sum() * len(keys)).numpy()
        assert chisquare(np.bincount(drawn.numpy(), minlength=5), expected).pvalue > 1e-3
        logprobs = torch.log_softmax(logits.double() / temperature, dim=-1)
        torch.testing.assert_close(sampler.logprobs[0], logprobs[drawn])


def test_noise_depends_on_key_and_position_alone() -> None:
    keys = torch.tensor([reply_key(1, 2, "a", 0), reply_key(1, 2, "a", 1), reply_key(1, 2, "b", 0)])
    assert len(set(keys.tolist())) == 3
    together = gumbel_noise(keys, 5, 50)
    for row in range(3):
        assert torch.equal(gumbel_noise(keys[row : row + 1], 5, 50)[0], together[row])
    assert not torch.equal(gumbel_noise(keys, 6, 50), together)
    assert bool(torch.isfinite(together).all())


def test_suppressed_tokens_are_never_drawn_and_hold_no_probability() -> None:
    keys = torch.tensor([reply_key(0, 0, "s", reply) for reply in range(500)])
    sampler = KeyedSampler(keys, prompt_tokens=0, temperature=1.0, suppressed=(0, 2))
    drawn = sampler(torch.zeros(500, 0), torch.zeros(500, 4)).argmax(dim=-1)
    assert set(drawn.tolist()) == {1, 3}
    assert sampler.logprobs[0].tolist() == pytest.approx([math.log(0.5)] * 500)


def test_temperature_zero_takes_the_likeliest_token() -> None:
    sampler = KeyedSampler(torch.tensor([3]), prompt_tokens=0, temperature=0.0, suppressed=(1,))
    assert int(sampler(torch.zeros(1, 0), torch.tensor([[0.0, 9.0, 1.0]])).argmax()) == 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RolloutSettings(replies=1), "rollout.replies=1"),
        (lambda: RolloutSettings(temperature=float("nan")), "rollout.temperature=nan"),
        (lambda: RolloutSettings(shared_share=1.5), "rollout.shared_share=1.5"),
        (lambda: ObjectiveSettings(epochs=0), "objective.epochs=0"),
        (lambda: RewardSettings(function="f.py:f", timeout_s=0), "reward.timeout_s=0"),
        (lambda: grpo(reward=RewardSettings()), "reward.function=''"),
        (lambda: grpo(objective=ObjectiveSettings(mini_batches=9), samples_per_step=8), "objective.mini_batches=9"),
    ],
)
def test_settings_out_of_range_are_named(make: object, said: str) -> None:
    with pytest.raises(SettingsError, match=r"must|exceeds") as error:
        make()  # type: ignore[operator]
    assert said in str(error.value)


def grpo(**changes: object) -> GRPOSettings:
    plain: dict[str, object] = {
        "model": "m",
        "data": ("d.jsonl",),
        "table": "t",
        "reward": RewardSettings(function="f.py:f"),
    }
    return GRPOSettings(**{**plain, **changes})  # type: ignore[arg-type]


def test_a_reply_goes_on_from_the_last_token_not_from_the_farthest_frame() -> None:
    """The frames of a long video reach beyond the text behind it."""
    positions = torch.tensor([[0, 1, 41, 2, 3], [0, 1, 1, 2, 3], [0, 1, 1, 2, 3]])
    prompt = Prompt(
        sample_id="long",
        row=0,
        input_ids=torch.arange(5),
        position_ids=positions,
        visual_tokens=2,
        text="",
        answer=None,
        extras={},
    )
    reply = Reply(tokens=np.array([7, 8]), logprobs=np.zeros(2), finished=True)
    assert full_sample(prompt, reply).position_ids[:, -2:].tolist() == [[4, 5]] * 3


def test_replies_of_two_runs_are_compared_token_by_token() -> None:
    def record(reply: int, tokens: list[int]) -> dict[str, object]:
        return {"step": 0, "sample_id": "a", "reply": reply, "tokens": tokens}

    one = [record(0, [1, 2, 3]), record(1, [4, 5]), record(2, [6]), record(3, [7])]
    other = [record(0, [1, 2, 3]), record(1, [4, 9]), record(2, [6, 8])]
    found = differences(one, other)
    assert (found.replies, found.differing, found.first_differing_token) == (3, 2, [1, 1])
