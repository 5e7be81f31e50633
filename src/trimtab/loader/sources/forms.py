"""Which form a record has, and its conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.errors import DatasetError
from trimtab.loader.sources import chat_messages, share_gpt, verl_prompt
from trimtab.loader.sources.allowed_roots import AllowedRoots
from trimtab.loader.sources.content import VisualReader
from trimtab.loader.sources.normal_form import Conversation, Message
from trimtab.loader.sources.record_errors import check_text
from trimtab.loader.sources.storage import name_in
from trimtab.schema.json_kind import json_kind
from trimtab.schema.metadata import VisualKind

_FORMS = (chat_messages, share_gpt, verl_prompt)
_MEDIA_COLUMNS: dict[VisualKind, tuple[str, str]] = {"image": ("images", "image"), "video": ("videos", "video")}


def read_conversation(
    record: Mapping[str, Any], where: str, root: str, container: tuple[str, int], allowed: AllowedRoots
) -> Conversation:
    """Turn a record into the normal form.

    Args:
        record: the fields of one JSON line or Parquet row.
        where: ``file:line`` or ``file#row``; behind the file's folder it names a record without an id.
        root: folder relative media paths start from.
        container: location and row the record came from.
        allowed: where media may lie.

    Raises:
        DatasetError: the record has no known form, an unknown role, or placeholders that do not match its visuals.
    """
    form = next((form for form in _FORMS if record.get(form.COLUMN) is not None), None)
    if form is None:
        raise DatasetError(f"{where}: {_formless(record)}")
    turns = record[form.COLUMN]
    if isinstance(turns, str) or not isinstance(turns, Sequence) or not turns:
        raise DatasetError(f"{where}: {form.COLUMN} must be a list of turns that is not empty; correct or remove it")
    media = {kind: _media_list(record, columns, where) for kind, columns in _MEDIA_COLUMNS.items()}
    reader = VisualReader(where, root, container, media, allowed)
    messages = tuple(_read_turn(form, turn, index, where, reader) for index, turn in enumerate(turns))
    consumed = {form.COLUMN, "id", *(column for columns in _MEDIA_COLUMNS.values() for column in columns)}
    given = record.get("id")
    sample_id = name_in(container[0], where) if given in (None, "") else str(given)
    check_text(sample_id, "the id", where)
    return Conversation(
        sample_id=sample_id,
        messages=messages,
        visuals=reader.finish(),
        extras={name: value for name, value in record.items() if name not in consumed},
    )


def _formless(record: Mapping[str, Any]) -> str:
    columns = [form.COLUMN for form in _FORMS]
    if null := [column for column in columns if column in record]:
        return f"{' and '.join(null)} must hold a list of turns, found null; correct or remove the record"
    known = ", ".join(columns)
    if not record:
        return f"the record has no field, none of {known}; complete or remove it"
    return f"none of the fields {known} is there, found {', '.join(record)}; rename the field"


def _read_turn(form: Any, turn: Any, index: int, where: str, reader: VisualReader) -> Message:
    if not isinstance(turn, Mapping):
        raise DatasetError(f"{where}: turn {index} must be an object, found {json_kind(turn)}; correct the record")
    speaker = turn.get(form.ROLE_KEY)
    if not isinstance(speaker, str) or speaker not in form.ROLES:
        raise DatasetError(
            f"{where}: turn {index} has the unknown role {speaker!r}; known: {', '.join(form.ROLES)}; rename it"
        )
    if turn.get("tool_calls"):
        raise DatasetError(
            f"{where}: turn {index} calls a tool in tool_calls, which chat templates of vision-language models drop; "
            f"write the call into its {form.CONTENT_KEY}"
        )
    weight = turn.get("weight")
    if isinstance(weight, bool) or weight not in (None, 0, 1):
        raise DatasetError(
            f"{where}: turn {index} has the weight {weight!r}, which is not supported; write 1, or 0 to keep it out of "
            "the loss"
        )
    message = Message(form.ROLES[speaker], reader.read(turn.get(form.CONTENT_KEY)), trained=weight != 0)
    for part in message.parts:
        check_text(part.text, f"turn {index}", where)
    return message


def _media_list(record: Mapping[str, Any], columns: tuple[str, str], where: str) -> tuple[str, Sequence[Any]]:
    for column in columns:
        value = record.get(column)
        if value is None:
            continue
        if isinstance(value, str | bytes | Mapping):
            return column, [value]
        if isinstance(value, Sequence):
            return column, value
        raise DatasetError(f"{where}: {column} must be a path or a list, found {json_kind(value)}; correct it")
    return columns[0], ()
