"""Rollout on the training ranks, through the unmodified Transformers model.

Every rank holds the gathered language model and generates on its own, so a long reply holds nobody else up. A rank that
has answered its own prompts takes waiting ones, told apart by a counter in a store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList

from trimtab.runtime.groups import Ranks
from trimtab.runtime.vlm import BalancedVLM
from trimtab.training.grpo.rollout import Reply, RolloutRequest
from trimtab.training.grpo.sampling import KeyedSampler, reply_key
from trimtab.training.grpo.settings import RolloutSettings
from trimtab.training.grpo.unsharded import unsharded
from trimtab.training.together import together


class TransformersEngine:
    """See ``rollout.RolloutEngine``."""

    def __init__(
        self,
        model: BalancedVLM,
        settings: RolloutSettings,
        ranks: Ranks,
        *,
        seed: int,
        end_tokens: tuple[int, ...],
        suppressed: tuple[int, ...],
        pad_token: int,
        timeout_s: float,
    ) -> None:
        """Generate with ``model``; a collective of all ranks.

        Args:
            model: the policy; its ``encode_visuals`` is registered with FSDP as a forward method.
            settings: lengths, temperature, batch size.
            ranks: all of them.
            seed: of the run.
            end_tokens: any of them ends a reply.
            suppressed: tokens that are never drawn.
            pad_token: fills short prompts of a batch.
            timeout_s: longest wait for the store.
        """
        self._model, self._settings, self._ranks, self._seed = model, settings, ranks, seed
        self._end, self._suppressed, self._pad = end_tokens, suppressed, pad_token
        self._store = _shared_store(ranks, timeout_s)
        self._rollouts = 0

    @torch.no_grad()
    def generate(self, request: RolloutRequest) -> dict[int, list[Reply]]:
        """Replies to the prompts this rank answered.

        Raises:
            TrainingError: see the protocol.
        """
        self._rollouts += 1  # names the counter of waiting prompts: a step may be rolled out again
        visuals = self._model.encode_visuals(request.pack.to(self._ranks.device))
        rows = _rows_of_prompts(request, self._ranks.rank)
        with unsharded(self._model, self._ranks.control):
            return together(
                self._ranks.control, f"step {request.step}, rollout", lambda: self._answer(request, visuals, rows)
            )

    def _answer(
        self, request: RolloutRequest, visuals: Tensor | None, rows: dict[int, slice]
    ) -> dict[int, list[Reply]]:
        replies: dict[int, list[Reply]] = {}
        for chunk in self._chunks(request):
            replies.update(zip(chunk, self._generate(request, chunk, visuals, rows), strict=True))
        return replies

    def _chunks(self, request: RolloutRequest) -> Iterator[Sequence[int]]:
        """Its own prompts, several at once, then waiting ones, one by one."""
        own, shared = request.plan.own[self._ranks.rank], request.plan.shared
        for start in range(0, len(own), self._settings.prompts_at_once):
            yield own[start : start + self._settings.prompts_at_once]
        while shared and (place := self._store.add(f"rollout-{self._rollouts}", 1) - 1) < len(shared):
            yield [shared[place]]

    def _generate(
        self, request: RolloutRequest, chunk: Sequence[int], visuals: Tensor | None, rows: dict[int, slice]
    ) -> list[list[Reply]]:
        prompts, replies = [request.prompts[index] for index in chunk], self._settings.replies
        inputs = padded(
            [prompt.input_ids for prompt in prompts], [prompt.position_ids for prompt in prompts], replies, self._pad
        )
        keys = [reply_key(self._seed, request.step, p.sample_id, reply) for p in prompts for reply in range(replies)]
        sampler = KeyedSampler(
            torch.tensor(keys, device=self._ranks.device),
            prompt_tokens=inputs["input_ids"].shape[1],
            temperature=self._settings.temperature,
            suppressed=self._suppressed,
        )
        outputs = None
        if visuals is not None:
            index = [
                row for prompt in chunk for _ in range(replies) for row in range(*rows[prompt].indices(len(visuals)))
            ]
            chosen = torch.tensor(index, dtype=torch.int64, device=visuals.device)
            is_video = request.pack.visual_is_video.to(visuals.device)
            outputs = self._model.encoder_outputs(visuals[chosen], is_video[chosen])
        model: Any = self._model.base
        tokens = model.generate(
            **{name: tensor.to(self._ranks.device) for name, tensor in inputs.items()},
            **({"mm_encoder_outputs": outputs} if outputs else {}),
            generation_config=self._generation_config(),
            logits_processor=LogitsProcessorList([sampler]),
            synced_gpus=False,
        )
        drawn = tokens[:, inputs["input_ids"].shape[1] :].cpu()
        logprobs = torch.stack(sampler.logprobs, dim=1).cpu()
        found = [self._cut(drawn[row], logprobs[row]) for row in range(len(keys))]
        return [found[start : start + replies] for start in range(0, len(found), replies)]

    def _generation_config(self) -> GenerationConfig:
        return GenerationConfig(
            max_new_tokens=self._settings.max_reply_tokens,
            do_sample=False,
            num_beams=1,
            use_cache=True,
            repetition_penalty=1.0,
            eos_token_id=list(self._end),
            pad_token_id=self._pad,
        )

    def _cut(self, tokens: Tensor, logprobs: Tensor) -> Reply:
        """Up to and with the first end token."""
        ends = torch.nonzero(torch.isin(tokens, torch.tensor(self._end)))[:, 0]
        length = int(ends[0]) + 1 if len(ends) else len(tokens)
        return Reply(tokens=tokens[:length].numpy(), logprobs=logprobs[:length].numpy(), finished=bool(len(ends)))


def padded(ids: Sequence[Tensor], positions: Sequence[Tensor], replies: int, pad_token: int) -> dict[str, Tensor]:
    """Prompts padded on the left to one length, each repeated for its replies.

    Args:
        ids: int64 [l] of each prompt.
        positions: int64 [3, l] of each prompt.
        replies: n.
        pad_token: fills.

    Returns:
        ``input_ids`` and ``attention_mask`` int64 [P * n, L], and ``position_ids`` int64 [4, P * n, L]: text positions,
        then the three rotary ones.
    """
    length = max(len(tokens) for tokens in ids)
    input_ids = torch.full((len(ids), length), pad_token)
    mask = torch.zeros(len(ids), length, dtype=torch.int64)
    position_ids = torch.zeros(4, len(ids), length, dtype=torch.int64)
    for row, (tokens, own) in enumerate(zip(ids, positions, strict=True)):
        start = length - len(tokens)
        input_ids[row, start:], mask[row, start:] = tokens, 1
        position_ids[0, row, start:] = torch.arange(len(tokens))
        position_ids[1:, row, start:] = own
    repeated = {"input_ids": input_ids, "attention_mask": mask}
    found = {name: tensor.repeat_interleave(replies, dim=0) for name, tensor in repeated.items()}
    return {**found, "position_ids": position_ids.repeat_interleave(replies, dim=1)}


def _rows_of_prompts(request: RolloutRequest, rank: int) -> dict[int, slice]:
    """Where the embeddings of each prompt this rank may answer lie among those it receives."""
    batch = request.plan.batch
    rows = request.plan.plan.rows(rank, 0)
    own = batch.take(rows)
    tokens = torch.from_numpy(own.visual_tokens).cumsum(0).tolist()
    stops = [0, *tokens]
    bounds = [stops[offset] for offset in own.visual_offsets.tolist()]
    prompts = request.plan.prompt[rows].tolist()
    return {prompt: slice(bounds[place], bounds[place + 1]) for place, prompt in enumerate(prompts)}


def _shared_store(ranks: Ranks, timeout_s: float) -> dist.TCPStore:
    """A store of this engine's own, kept by rank 0."""
    host, limit = os.environ.get("MASTER_ADDR", "127.0.0.1"), timedelta(seconds=timeout_s)
    port: list[int] = [0]
    if ranks.is_first:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=limit)
        port = [store.port]
    dist.broadcast_object_list(port, group=ranks.control, group_src=0)
    if not ranks.is_first:
        store = dist.TCPStore(host, port[0], is_master=False, timeout=limit)
    dist.barrier(ranks.control)  # its keeper must not go before everyone has found it
    return store
