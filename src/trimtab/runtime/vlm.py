"""A Transformers vision-language model whose vision work is spread over ranks by the plan. It is the FSDP root.

forward: encode this rank's vision units -> embeddings to the ranks that hold their placeholders -> language model on
this rank's pack, sharded sequences attending together with the ranks that share them -> loss of each loss token.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from trimtab.errors import SettingsError, UnknownModelError
from trimtab.runtime.attention import use_packed_attention
from trimtab.runtime.exchange import exchange_rows, link
from trimtab.runtime.groups import NodeGroups
from trimtab.runtime.packed_batch import PackedBatch
from trimtab.runtime.recompute import check_recomputation
from trimtab.runtime.ulysses import ShardedSequences, check_degrees

Mark = Callable[[str], None]


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenScores:
    """How well the model predicted the loss tokens of a pack.

    Attributes:
        loss: float [K], cross entropy, with gradient.
        correct: bool [K], whether the likeliest token was the target.
    """

    loss: Tensor
    correct: Tensor


class BalancedVLM(nn.Module):
    """Runs ``PackedBatch``es; every call is a collective of ``group`` when any rank has vision units."""

    def __init__(
        self,
        model: nn.Module,
        group: dist.ProcessGroup,
        mark: Mark | None = None,
        *,
        nodes: NodeGroups | None = None,
    ) -> None:
        """Wrap a model.

        Args:
            model: a Transformers VLM, or a PEFT model around one. Its attention is set to packed attention.
            group: the ranks that share vision work.
            mark: told which phase begins ("vision", "exchange", "language").
            nodes: the groups that share sequences; None where every sample runs whole.

        Raises:
            UnknownModelError: the model cannot take vision outputs computed elsewhere.
            SettingsError: the model's heads do not split evenly in such groups.
        """
        super().__init__()
        self.model = model
        self._group = group
        self._mark = mark or _ignore
        self._nodes = nodes
        check_hooks(self.base)
        use_packed_attention(self.base)
        if nodes:
            text = self.base.config.get_text_config()
            check_degrees(text.num_attention_heads, text.num_key_value_heads, nodes.by_degree)
            self.base.get_input_embeddings().register_forward_hook(self._link_embeddings)

    @property
    def base(self) -> PreTrainedModel:
        """The Transformers model, adapters or not."""
        model: Any = self.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def blocks(self) -> list[nn.Module]:
        """The vision and language blocks, the units of sharding and recomputation."""
        core: Any = self.base.model
        return [*core.visual.blocks, *core.language_model.layers]

    def forward(self, batch: PackedBatch, *, temperature: float = 1.0, suppressed: tuple[int, ...] = ()) -> TokenScores:
        """Score the loss tokens of a pack.

        Args:
            batch: the pack.
            temperature: logits are divided by it.
            suppressed: tokens that have no probability, as in sampling.
        """
        received = self.encode_visuals(batch)
        self._mark("language")
        output: Any = self.base(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            mm_encoder_outputs=self.encoder_outputs(received, batch.visual_is_video),
            logits_to_keep=batch.loss_positions,
            packed_lengths=batch.packed_lengths,
            use_cache=False,
            **self._sharded(batch),
        )
        scores = token_scores(output.logits[0], batch.targets, temperature=temperature, suppressed=suppressed)
        return scores if received is None else replace(scores, loss=link(scores.loss, received))

    def _sharded(self, batch: PackedBatch) -> dict[str, ShardedSequences]:
        if not batch.sequence_groups:
            return {}
        if self._nodes is None:
            raise SettingsError("the plan shards sequences, but the model was wrapped without nodes=")
        check_recomputation(self.base)
        return {"sharded_sequences": ShardedSequences(batch.sequence_groups, self._nodes)}

    def _link_embeddings(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        """Let gradients reach the first layer on ranks without visual tokens too, as they do on those with some.

        Otherwise, with frozen embeddings, only some ranks would issue the exchanges of its backward.
        """
        core: Any = self.base.model
        trains_vision = any(parameter.requires_grad for parameter in core.visual.parameters())
        if trains_vision and torch.is_grad_enabled() and not output.requires_grad:
            output.requires_grad_()

    def encode_visuals(self, batch: PackedBatch) -> Tensor | None:
        """[E, D * (1 + deepstack layers)]: embeddings of this pack's placeholders, wherever they were encoded.

        None where no rank encodes anything.
        """
        if batch.visual_route is None:
            return None
        self._mark("vision")
        core: Any = self.base.model
        output = core.visual(batch.pixel_values, grid_thw=batch.unit_grid_thw)
        rows = torch.cat([output.pooler_output, *(getattr(output, "deepstack_features", None) or [])], dim=-1)
        self._mark("exchange")
        return exchange_rows(rows, batch.visual_route, self._group, self._mark)

    def encoder_outputs(self, received: Tensor | None, is_video: Tensor) -> dict[str, Any] | None:
        """Rows of ``encode_visuals`` as the model takes them: ``mm_encoder_outputs``; ``is_video`` is bool [E]."""
        return encoder_outputs(received, is_video, self.base.config.get_text_config().hidden_size)


def encoder_outputs(rows: Tensor | None, is_video: Tensor, width: int) -> dict[str, Any] | None:
    """Encoded visuals as a model takes them: ``mm_encoder_outputs``.

    Args:
        rows: [E, width * (1 + deepstack layers)], in the order of their placeholders, or None.
        is_video: bool [E].
        width: of the language model.
    """
    if rows is None or not len(rows):
        return None
    parts = {"image": rows[~is_video], "video": rows[is_video]}
    return {kind: _encoder_output(part, width) for kind, part in parts.items() if len(part)}


def token_scores(
    logits: Tensor, targets: Tensor, *, temperature: float = 1.0, suppressed: tuple[int, ...] = ()
) -> TokenScores:
    """How well logits [K, vocabulary] predict ``targets`` [K]; in float32 at least."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    if suppressed:
        logits = logits.index_fill(-1, torch.tensor(suppressed, device=logits.device), float("-inf"))
    loss = F.cross_entropy(logits, targets, reduction="none")
    return TokenScores(loss=loss, correct=logits.argmax(dim=-1) == targets)


def check_hooks(model: PreTrainedModel) -> None:
    """Check that the model takes vision outputs from outside.

    Raises:
        UnknownModelError: ``forward`` has no ``mm_encoder_outputs`` (Transformers older than 5.19 silently drops it).
    """
    if "mm_encoder_outputs" not in inspect.signature(model.forward).parameters:
        raise UnknownModelError(
            f"{type(model).__name__}.forward takes no mm_encoder_outputs, so vision outputs cannot be handed to it; "
            "use transformers>=5.19 and a model of a supported family"
        )


def _encoder_output(rows: Tensor, width: int) -> Any:
    from transformers.modeling_outputs import BaseModelOutputWithPooling
    from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

    embeddings, *deepstack = rows.split(width, dim=-1)
    if not deepstack:
        return BaseModelOutputWithPooling(pooler_output=(embeddings,))
    return BaseModelOutputWithDeepstackFeatures(
        pooler_output=(embeddings,), deepstack_features=[(layer,) for layer in deepstack]
    )


def _ignore(_: str) -> None:
    return None
