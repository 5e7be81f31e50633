"""A conversation as model input: tokens, loss weights, and where its visuals' tokens lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jinja2
import numpy as np
from numpy.typing import NDArray

from trimtab.errors import DatasetError, SettingsError
from trimtab.families.family import Family
from trimtab.loader.sources.normal_form import Conversation, Message
from trimtab.loader.sources.record_errors import named_record
from trimtab.media.geometry import patch_seconds
from trimtab.media.visual import frame_rate
from trimtab.schema.geometry import VisionGeometry
from trimtab.schema.metadata import Visual, VisualKind
from trimtab.schema.number_of import number_of

TrainOn = Literal["assistant", "last_assistant"]

_TOKEN_TYPES: dict[VisualKind, int] = {"image": 1, "video": 2}


@dataclass(frozen=True, eq=False, kw_only=True)
class EncodedSample:
    """One sample's tokens (L tokens, V visuals).

    Attributes:
        input_ids: int64 [L].
        loss_weights: float32 [L], weight of predicting the token at this position; position 0 is never predicted.
        token_types: int8 [L], 0 text, 1 image, 2 video: the model input ``mm_token_type_ids``.
        visual_offsets: int64 [V], position of each visual's first placeholder token.
    """

    input_ids: NDArray[np.int64]
    loss_weights: NDArray[np.float32]
    token_types: NDArray[np.int8]
    visual_offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def loss_tokens(self) -> int:
        """Tokens whose prediction enters the loss."""
        return int(np.count_nonzero(self.loss_weights))

    @property
    def text_tokens(self) -> int:
        """Tokens that are not visual placeholders."""
        return int(np.count_nonzero(self.token_types == 0))


def encode(
    conversation: Conversation,
    visuals: Sequence[Visual],
    tokenizer: Any,
    family: Family,
    geometry: VisionGeometry,
    *,
    train_on: TrainOn = "assistant",
    generation_prompt: bool | None = None,
) -> EncodedSample:
    """Render a conversation through the tokenizer's chat template and expand its visuals.

    The tokens equal the Transformers processor's. Assistant turns are trained on from behind their header to their
    end-of-turn token, unless their message is not ``trained``; the line break a template puts behind is left out.

    Args:
        conversation: the sample.
        visuals: its visuals' metadata, in order.
        tokenizer: a fast Transformers tokenizer; without a chat template of its own it takes the family's.
        family: of the model.
        geometry: of the model; times the frames of a video where the family writes timestamps.
        train_on: which assistant turns enter the loss.
        generation_prompt: end with the header of an assistant turn to be generated; None does so where the conversation
            ends on another's turn, as a prompt does.

    Raises:
        DatasetError: the first turn is the assistant's, the template cannot render the conversation or rewrites earlier
            turns, the tokenizer refuses the text, or a text holds a placeholder token.
        SettingsError: the tokenizer is not a fast one.
    """
    if generation_prompt is None:
        generation_prompt = conversation.messages[-1].role != "assistant"
    with named_record(f"sample {conversation.sample_id}"):
        text, spans = _render(conversation, tokenizer, family, train_on, generation_prompt)
        ids, weights = _tokenize(text, spans, tokenizer)
    places = _placeholders(conversation, visuals, ids, tokenizer, family)
    pieces: list[_Piece] = []
    start = 0
    for place, visual in zip(places, visuals, strict=True):
        pieces.append(_Piece(ids[start:place], weights[start:place]))
        pieces += _expand(visual, tokenizer, family, geometry)
        start = place + 1
    pieces.append(_Piece(ids[start:], weights[start:]))
    return _join(pieces)


class _Piece(NamedTuple):
    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    token_type: int = 0
    starts_visual: bool = False


def _render(
    conversation: Conversation, tokenizer: Any, family: Family, train_on: TrainOn, generation_prompt: bool
) -> tuple[str, list[tuple[int, int]]]:
    """The conversation's text, and the spans of its characters that enter the loss."""
    messages = [_to_template(message) for message in conversation.messages]
    template = tokenizer.chat_template or family.chat_template

    def rendered(count: int, prompt: bool) -> str:
        try:
            return str(
                tokenizer.apply_chat_template(
                    messages[:count], chat_template=template, tokenize=False, add_generation_prompt=prompt
                )
            )
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise DatasetError(
                f"sample {conversation.sample_id}: the chat template cannot render it ({error}); correct the sample"
            ) from error

    full = rendered(len(messages), generation_prompt)
    turns = [index for index, message in enumerate(conversation.messages) if message.role == "assistant"]
    if turns and turns[0] == 0:
        raise DatasetError(f"sample {conversation.sample_id}: the assistant speaks first; put a user turn before it")
    spans = []
    for turn in turns[-1:] if train_on == "last_assistant" else turns:
        if not conversation.messages[turn].trained:
            continue
        before, through = rendered(turn, True), rendered(turn + 1, False)
        if not (full.startswith(through) and through.startswith(before)):
            raise DatasetError(
                f"sample {conversation.sample_id}: the chat template renders turn {turn} otherwise once more turns "
                "follow, so its tokens cannot be told apart; train on the last assistant turn, or split the sample"
            )
        spans.append((len(before), len(through.rstrip())))
    return full, spans


def _to_template(message: Message) -> dict[str, Any]:
    if all(part.kind == "text" for part in message.parts):
        return {"role": message.role, "content": "".join(part.text for part in message.parts)}
    parts = [
        {"type": "text", "text": part.text} if part.kind == "text" else {"type": part.kind} for part in message.parts
    ]
    return {"role": message.role, "content": parts}


def _tokenize(text: str, spans: list[tuple[int, int]], tokenizer: Any) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    if not tokenizer.is_fast:
        raise SettingsError(
            f"{type(tokenizer).__name__} cannot tell where its tokens lie in the text; save it as a fast tokenizer"
        )
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    starts = np.array([start for start, _ in encoded["offset_mapping"]], dtype=np.int64)
    weights = np.zeros(len(starts), dtype=np.float32)
    for start, stop in spans:
        weights[(starts >= start) & (starts < stop)] = 1.0
    weights[:1] = 0.0
    return np.array(encoded["input_ids"], dtype=np.int64), weights


def _placeholders(
    conversation: Conversation, visuals: Sequence[Visual], ids: NDArray[np.int64], tokenizer: Any, family: Family
) -> list[int]:
    image, video = (tokenizer.convert_tokens_to_ids(token) for token in (family.image_token, family.video_token))
    places: list[int] = np.flatnonzero((ids == image) | (ids == video)).tolist()
    found = ["image" if ids[place] == image else "video" for place in places]
    if found != [visual.kind for visual in visuals]:
        raise DatasetError(
            f"sample {conversation.sample_id}: its rendered text places {number_of(found.count('image'), 'image')} and "
            f"{number_of(found.count('video'), 'video')} for {number_of(len(visuals), 'visual')}; "
            "the chat template must place every visual, "
            f"and no text may hold {family.image_token} or {family.video_token}"
        )
    return places


def _expand(visual: Visual, tokenizer: Any, family: Family, geometry: VisionGeometry) -> list[_Piece]:
    tokens = visual.grid_h * visual.grid_w // geometry.merge_size**2
    content: list[str | int] = [visual.grid_t * tokens]
    token = tokenizer.convert_tokens_to_ids(family.image_token if visual.kind == "image" else family.video_token)
    if visual.kind == "video":
        seconds = patch_seconds(visual.frames or 0, frame_rate(visual), geometry)
        content = family.video_placeholder(seconds, tokens)
    pieces = []
    first = True
    for item in content:
        if isinstance(item, int):
            ids, token_type = [token] * item, _TOKEN_TYPES[visual.kind]
        else:
            ids, token_type = tokenizer(item, add_special_tokens=False)["input_ids"], 0
        begins = first and token_type > 0
        first = first and not begins
        pieces.append(_Piece(np.array(ids, dtype=np.int64), np.zeros(len(ids), dtype=np.float32), token_type, begins))
    return pieces


def _join(pieces: list[_Piece]) -> EncodedSample:
    lengths = np.array([len(piece.ids) for piece in pieces], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    return EncodedSample(
        input_ids=np.concatenate([piece.ids for piece in pieces]),
        loss_weights=np.concatenate([piece.weights for piece in pieces]),
        token_types=np.repeat(np.array([piece.token_type for piece in pieces], dtype=np.int8), lengths),
        visual_offsets=starts[[piece.starts_visual for piece in pieces]],
    )
