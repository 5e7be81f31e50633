"""Steps whose samples have sequence-parallel degrees, run on real ranks and by one process, sample by sample."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.runtime.step_cases import Samples, shuffled_plan, visual
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from trimtab.demo.tiny_models import tiny_config, tiny_model
from trimtab.loader.collate import PackableSample, pack
from trimtab.runtime.attention import use_packed_attention
from trimtab.runtime.fsdp import shard
from trimtab.runtime.groups import NodeGroups, node_groups, ranks_of_default_group
from trimtab.runtime.loss import gradient_scale, step_loss
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.runtime.ulysses import ShardedSequences
from trimtab.runtime.vlm import BalancedVLM
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan
from trimtab.schema.sequences import SequencePacking

Placement = tuple[int, int, int]
"""Degree, first rank and micro-batch of a sample."""

VLMS = ("qwen2_5_vl", "qwen3_vl")
PACKING = SequencePacking(below=20, tokens=30)

# lengths no degree divides, visuals that cuts go through, a sequence of one token, several packs in a node
NESTED_TEXT = ((37, ()), (1, ()), (13, ()), (21, ()), (9, ()), (11, ()), (3, ()), (5, ()), (17, ()), (2, ()), (29, ()))
NESTED_VISUAL = (
    (5, (visual("image", 1, 12, 8), visual("video", 2, 4, 4))),
    (1, ()),
    (4, (visual("video", 5, 4, 2),)),
    (21, ()),
    (6, (visual("image", 1, 4, 6), visual("image", 1, 8, 4))),
    (11, ()),
    (3, (visual("image", 1, 2, 2),)),
    (5, ()),
    (17, (visual("video", 3, 4, 4),)),
    (2, ()),
    (29, ()),
)
ON_EIGHT: tuple[Placement, ...] = (
    (8, 0, 0), (8, 0, 0), (8, 0, 0), (4, 0, 0), (4, 4, 0), (4, 0, 0), (2, 2, 0), (2, 0, 0), (2, 6, 0), (1, 3, 0),
    (1, 0, 0),
)  # fmt: skip
ON_FOUR: tuple[Placement, ...] = tuple((min(p, 4), r % 4 // min(p, 4) * min(p, 4), m) for p, r, m in ON_EIGHT)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What to run.

    Attributes:
        model: "text" or a family of ``tiny_model``.
        cases: text tokens and visuals of each sample.
        placed: of each sample.
        heads, kv_heads: of the language model.
        micro_batches: of the step.
        fsdp: shard the weights.
        recompute: None, "reentrant", "plain" or "no early stop".
        prepare: freezes or adapts the model.
        dtype: of the weights.
        jitter_s: every rank sleeps up to so long before each layer, in forward and backward.
        overlap: exchanges run beside attention.
    """

    model: str = "text"
    cases: Any = NESTED_TEXT
    placed: tuple[Placement, ...] = ON_EIGHT
    heads: int = 8
    kv_heads: int = 2
    micro_batches: int = 1
    fsdp: bool = False
    recompute: str | None = None
    prepare: Callable[[Any], Any] | None = None
    dtype: torch.dtype = torch.float64
    jitter_s: float = 0.0
    overlap: bool = True
    loss_tokens: int = 2

    def built(self) -> PreTrainedModel:
        model = build(self.model, self.heads, self.kv_heads).to(self.dtype)
        return self.prepare(model) if self.prepare else model

    def samples(self, model: Any) -> Any:
        kind = TextSamples if self.model == "text" else Samples
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        return kind(model, self.cases, loss_tokens=self.loss_tokens)

    def plan(self, batch: BatchMetadata, ranks: int) -> StepPlan:
        return sharded_plan(batch, ranks, self.placed, self.micro_batches)


def build(name: str, heads: int, kv_heads: int) -> PreTrainedModel:
    """A model of hidden size 64 with the given heads; equal weights each time."""
    if name != "text" and (heads, kv_heads) == (4, 2):
        return tiny_model(name)  # type: ignore[arg-type]
    head_dim = 8
    if name == "text":
        config = Qwen2Config(
            vocab_size=400, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=heads,
            num_key_value_heads=kv_heads, head_dim=head_dim, pad_token_id=0, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        kind: Any = Qwen2ForCausalLM
    else:
        config = tiny_config(name)  # type: ignore[arg-type]
        text = config.text_config
        text.num_attention_heads, text.num_key_value_heads, text.head_dim = heads, kv_heads, head_dim
        text.rope_parameters = {**text.rope_parameters, "mrope_section": [1, 1, 2]}
        kind = type(tiny_model(name))  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(config).eval()


class TextSamples:
    """The text-only counterpart of ``Samples``."""

    patch_dim = 1

    def __init__(self, model: Any, cases: Any, *, loss_tokens: int = 2) -> None:
        from tests.runtime.step_cases import batch_of

        draw = torch.Generator().manual_seed(0)
        self.cases, self.loss_tokens, self.config = cases, loss_tokens, None
        self.batch = batch_of(cases, loss_tokens=loss_tokens)
        self.tokens = [torch.randint(3, 90, (text,), generator=draw) for text, _ in cases]

    def packable(self) -> dict[int, PackableSample]:
        found = {}
        for row, ids in enumerate(self.tokens):
            weights = torch.zeros(len(ids))
            weights[max(0, len(ids) - self.loss_tokens) :] = 1.0
            positions = torch.arange(len(ids)).expand(3, -1)
            found[row] = PackableSample(input_ids=ids, position_ids=positions, loss_weights=weights)
        return found

    def unit_patches(self, plan: Any, rank: int, micro_batch: int) -> list[np.ndarray]:
        return []

    def stock_inputs(self, row: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[row][None], "use_cache": False}


def sharded_plan(batch: BatchMetadata, ranks: int, placed: Any, micro_batches: int, seed: int = 1) -> StepPlan:
    """A plan with the given placements and single frames encoded anywhere."""
    degree, first, micro_batch = np.array(placed, dtype=np.int64).reshape(-1, 3).T
    loose = shuffled_plan(batch, ranks=ranks, micro_batches=micro_batches, seed=seed)
    units = replace(loose.units, micro_batch=micro_batch[batch.sample_of_visual[loose.units.visual]])
    return replace(loose, rank=first.copy(), degree=degree.copy(), micro_batch=micro_batch.copy(), units=units)


def packs_of(case: Case, samples: Any, plan: StepPlan, rank: int) -> list[PackedBatch]:
    """One rank's packs."""
    config = samples.config
    return [
        pack(
            plan, samples.batch, rank, micro_batch, samples.packable(),
            samples.unit_patches(plan, rank, micro_batch), patch_dim=samples.patch_dim, pad_token=0,
            placeholders=(config.image_token_id, config.video_token_id) if config else (), packing=PACKING,
        )
        for micro_batch in range(plan.micro_batches)
    ]  # fmt: skip


class TextScorer(torch.nn.Module):
    """A text model run on packs, as ``BalancedVLM`` runs a vision-language model."""

    def __init__(self, model: PreTrainedModel, nodes: NodeGroups | None) -> None:
        super().__init__()
        self.model, self._nodes = model, nodes
        use_packed_attention(model)

    def blocks(self) -> list[Any]:
        core: Any = self.model.model
        return list(core.layers)

    def forward(self, batch: PackedBatch) -> Tensor:
        sharded = ShardedSequences(batch.sequence_groups, self._nodes) if batch.sequence_groups else None
        logits = self.model(
            input_ids=batch.input_ids, position_ids=batch.position_ids[0], logits_to_keep=batch.loss_positions,
            packed_lengths=batch.packed_lengths, sharded_sequences=sharded, use_cache=False,
        ).logits[0]  # fmt: skip
        return F.cross_entropy(logits, batch.targets, reduction="none")


def scorer(case: Case, group: dist.ProcessGroup) -> Any:
    """The model of a case on this rank, ready for packs."""
    degrees = {degree for degree, _, _ in case.placed}
    nodes = node_groups(degrees, group, torch.device("cpu"), timeout_s=50, overlap=case.overlap)
    model = case.built()
    made: Any = TextScorer(model, nodes) if case.model == "text" else BalancedVLM(model, group, nodes=nodes)
    recompute(model, case.recompute)
    if case.jitter_s:
        jitter(made, case.jitter_s, group.rank())
    if case.fsdp:
        shard(made, ranks_of_default_group(torch.device("cpu"), timeout_s=50).mesh)
    return made


def recompute(model: Any, how: str | None) -> None:
    if how is None:
        return
    model.train()  # recomputation is off in evaluation; no part of these models draws random numbers
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": how == "reentrant"})


def jitter(model: Any, seconds: float, rank: int) -> None:
    draw = random.Random(rank)

    def sleep(*_: Any) -> None:
        time.sleep(draw.random() * seconds)

    for block in model.blocks():
        block.register_forward_pre_hook(sleep)
        block.register_full_backward_pre_hook(sleep)


def run_sharded(group: dist.ProcessGroup, case: Case) -> tuple[float, dict[str, np.ndarray]]:
    """Loss of the step, and gradients summed over ranks."""
    model = scorer(case, group)
    samples = case.samples(case.built())
    plan = case.plan(samples.batch, group.size())
    total = float(sum(float(sample.loss_weights[1:].sum()) for sample in samples.packable().values()))
    loss_sum = torch.zeros((), dtype=torch.float64)
    for batch in packs_of(case, samples, plan, group.rank()):
        found = model(batch)
        token_loss = found if isinstance(found, Tensor) else found.loss
        loss = step_loss(token_loss, batch.loss_weights, total)
        with torch.utils.checkpoint.set_checkpoint_early_stop(case.recompute != "no early stop"):
            (loss * (gradient_scale(group.size()) if case.fsdp else 1.0)).backward()
        loss_sum += loss.detach().double()
    dist.all_reduce(loss_sum, group=group)
    return float(loss_sum), dict(summed_gradients(model.model, group))


def summed_gradients(model: Any, group: dist.ProcessGroup) -> Any:
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        if isinstance(grad, DTensor):
            yield name, grad.full_tensor().numpy()
        elif parameter.requires_grad and not isinstance(parameter, DTensor):
            grad = torch.zeros_like(parameter) if grad is None else grad
            dist.all_reduce(grad, group=group)
            yield name, grad.numpy()


def reference(case: Case) -> tuple[float, dict[str, np.ndarray]]:
    """The same by one process and the unmodified model, one sample at a time."""
    model = case.built()
    samples = case.samples(model)
    weights = [sample.loss_weights for sample in samples.packable().values()]
    total, loss_sum = float(sum(float(each[1:].sum()) for each in weights)), 0.0
    for row, own in enumerate(weights):
        inputs = samples.stock_inputs(row)
        logits = model(**inputs).logits[0, :-1]
        losses = F.cross_entropy(logits, inputs["input_ids"][0, 1:], reduction="none")
        loss = (losses * own[1:].to(losses.dtype)).sum() / total
        if loss.requires_grad:
            loss.backward()
        loss_sum += float(loss.detach())
    grads = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    return loss_sum, grads


def assert_same(found: Any, expected: Any, *, tolerance: float = 1e-12) -> None:
    """Every rank's loss and gradients are the reference's; ``tolerance`` is relative to a gradient's largest entry."""
    loss, grads = expected
    largest = max(float(np.abs(grad).max()) for grad in grads.values())
    for rank_loss, rank_grads in found:
        assert abs(rank_loss - loss) <= tolerance * abs(loss)
        for name, grad in grads.items():
            scale = max(float(np.abs(grad).max()), 1e-3 * largest)
            np.testing.assert_allclose(rank_grads[name], grad, rtol=0, atol=tolerance * scale, err_msg=name)
