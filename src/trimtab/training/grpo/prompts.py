"""The prompts of a step: conversations up to the turn to be generated, as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.errors import DatasetError
from trimtab.families.family import Family
from trimtab.loader.conversation import EncodedSample, encode
from trimtab.loader.sources import Conversation, Dataset
from trimtab.loader.sources.normal_form import Message
from trimtab.media.geometry import seconds_per_patch
from trimtab.media.visual import frame_rate
from trimtab.runtime.positions import rope_positions
from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.metadata import BatchMetadata, Visual
from trimtab.schema.table import MetadataTable


@dataclass(frozen=True, eq=False, kw_only=True)
class Prompt:
    """One prompt (l tokens).

    Attributes:
        sample_id: of the table.
        row: of the table.
        input_ids: int64 [l], placeholders expanded, ending with the header of the turn to be generated.
        position_ids: int64 [3, l].
        visual_tokens: placeholders among them.
        text: of the last user turn, for reward functions.
        answer: the dataset's own reply, or None.
        extras: the record's other fields.
    """

    sample_id: str
    row: int
    input_ids: Tensor
    position_ids: Tensor
    visual_tokens: int
    text: str
    answer: str | None
    extras: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.input_ids)


class PromptReader:
    """Prompts by their row of the metadata table."""

    def __init__(
        self,
        table: MetadataTable,
        dataset: Dataset,
        *,
        geometry: VisionGeometry,
        family: Family,
        tokenizer: Any,
        model: PreTrainedModel,
        max_tokens: int | None,
    ) -> None:
        """Read prompts of a scanned dataset.

        Args:
            table: the scanned samples.
            dataset: the files it was scanned from.
            geometry: what it was scanned for.
            family: of the model.
            tokenizer: of the model.
            model: asked for rotary positions.
            max_tokens: longest prompt.
        """
        self._table, self._dataset = table, dataset
        self._geometry, self._family = geometry, family
        self._tokenizer, self._model = tokenizer, model
        self._max_tokens = max_tokens

    def conversation(self, row: int) -> Conversation:
        """The record of a row, up to the turn to be generated."""
        return _without_answer(self._record(row))[0]

    def tokens(self, row: int) -> int:
        """Tokens of a prompt.

        Raises:
            DatasetError: as for ``read``.
        """
        return len(self._encoded(row)[2])

    def read(self, row: int) -> Prompt:
        """One prompt.

        Raises:
            DatasetError: the record cannot be read, has no turn to answer, or is longer than the limit.
        """
        sample = self._table.sample(row)
        conversation, answer, encoded = self._encoded(row)
        input_ids = torch.from_numpy(encoded.input_ids)
        types = torch.from_numpy(encoded.token_types).long()
        return Prompt(
            sample_id=sample.sample_id,
            row=row,
            input_ids=input_ids,
            position_ids=self._positions(sample.visuals, input_ids, types),
            visual_tokens=int((types > 0).sum()),
            text=_text(conversation.messages[-1]),
            answer=answer,
            extras=dict(conversation.extras),
        )

    def _encoded(self, row: int) -> tuple[Conversation, str | None, EncodedSample]:
        """A prompt, its answer, and its tokens."""
        sample = self._table.sample(row)
        conversation, answer = _without_answer(self._record(row))
        encoded = encode(
            conversation, sample.visuals, self._tokenizer, self._family, self._geometry, generation_prompt=True
        )
        if self._max_tokens is not None and len(encoded) > self._max_tokens:
            raise DatasetError(
                f"sample {sample.sample_id}: its prompt has {len(encoded)} tokens, more than "
                f"rollout.max_prompt_tokens={self._max_tokens}; raise the limit or leave the sample out"
            )
        return conversation, answer, encoded

    def _record(self, row: int) -> Conversation:
        return self._dataset.conversation(int(self._table.dataset_index[row]), int(self._table.dataset_row[row]))

    def _positions(self, visuals: Sequence[Visual], input_ids: Tensor, types: Tensor) -> Tensor:
        return rope_positions(
            self._model,
            input_ids,
            types,
            torch.tensor([(v.grid_t, v.grid_h, v.grid_w) for v in visuals], dtype=torch.int64).reshape(-1, 3),
            torch.tensor([visual.kind == "video" for visual in visuals], dtype=torch.bool),
            torch.tensor([self._seconds(visual) for visual in visuals]),
        )

    def _seconds(self, visual: Visual) -> float:
        if visual.kind == "image":
            return 1.0
        return seconds_per_patch(visual.frames or 0, frame_rate(visual), self._geometry)


def prompt_batch(table: MetadataTable, prompts: Sequence[Prompt]) -> BatchMetadata:
    """Metadata of the prompts alone, with their true lengths."""
    rows = np.array([prompt.row for prompt in prompts], dtype=np.int64)
    text = [len(prompt) - prompt.visual_tokens for prompt in prompts]
    return replace(
        table.batch(rows),
        text_tokens=np.array(text, dtype=np.int64),
        loss_tokens=np.zeros(len(prompts), dtype=np.int64),
        loss_weight=np.ones(len(prompts)),
    )


def reply_batch(prompts: BatchMetadata, reply_tokens: NDArray[np.int64]) -> BatchMetadata:
    """Metadata of prompts with their replies; replies to one prompt share the encoding of its visuals.

    Args:
        prompts: P prompts.
        reply_tokens: int64 [P, n], tokens of each reply.
    """
    count, replies = reply_tokens.shape
    batch = prompts.take(np.repeat(np.arange(count), replies))
    lengths = reply_tokens.reshape(-1)
    return replace(
        batch,
        sample_ids=tuple(f"{name}#{index % replies}" for index, name in enumerate(batch.sample_ids)),
        text_tokens=batch.text_tokens + lengths,
        loss_tokens=lengths.astype(np.int64),
    )


def _without_answer(conversation: Conversation) -> tuple[Conversation, str | None]:
    messages, answer = conversation.messages, None
    if messages[-1].role == "assistant":
        messages, answer = messages[:-1], _text(messages[-1])
    if not messages:
        raise DatasetError(f"sample {conversation.sample_id}: has no turn to answer; put a user turn first")
    shown = sum(part.kind != "text" for message in messages for part in message.parts)
    if shown != len(conversation.visuals):
        raise DatasetError(f"sample {conversation.sample_id}: the answer shows a visual; only prompts may")
    return replace(conversation, messages=messages), answer


def _text(message: Message) -> str:
    return "".join(part.text for part in message.parts if part.kind == "text")
