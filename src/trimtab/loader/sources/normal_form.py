"""The one form every dataset is read into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trimtab.schema.metadata import VisualKind

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a message: text, or the place of the next image or video.

    Attributes:
        kind: "text", "image" or "video".
        text: the text; empty for a visual.
    """

    kind: Literal["text", "image", "video"]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn.

    Attributes:
        role: who speaks.
        parts: what is said and shown, in order.
        trained: an assistant's turn may enter the loss.
    """

    role: Role
    parts: tuple[Part, ...]
    trained: bool = field(default=True, repr=False)


@dataclass(frozen=True, slots=True)
class VisualSource:
    """An image or video as the dataset gives it.

    Attributes:
        kind: "image" or "video".
        uri: see ``trimtab.media.source``; where ``data`` is given it only names the visual.
        data: encoded bytes held in the dataset itself, or None.
    """

    kind: VisualKind
    uri: str
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One sample of a dataset.

    Attributes:
        sample_id: its record's ``id``; without one, ``file:line`` (from 1) or ``file#row`` (from 0), as errors name it.
        messages: its turns.
        visuals: its images and videos, one for each visual part, in the order of the parts.
        extras: fields of the record that are neither turns nor media, e.g. ``reward_model`` for RL.
    """

    sample_id: str
    messages: tuple[Message, ...]
    visuals: tuple[VisualSource, ...]
    extras: Mapping[str, Any]
