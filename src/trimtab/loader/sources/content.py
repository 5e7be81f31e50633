"""Message contents: text with ``<image>`` and ``<video>`` tags, or lists of typed parts."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.errors import DatasetError
from trimtab.loader.sources.allowed_roots import AllowedRoots
from trimtab.loader.sources.normal_form import Part, VisualSource
from trimtab.loader.sources.record_errors import check_path
from trimtab.loader.sources.storage import is_url, joined
from trimtab.schema.json_kind import json_kind
from trimtab.schema.metadata import VisualKind
from trimtab.schema.number_of import number_of

_TAG = re.compile(r"<(image|video)>")
_KINDS: tuple[VisualKind, ...] = ("image", "video")
_TYPES_OF_PARTS = ("text", "image", "video", "image_url", "video_url")
_KEYS_OF_PARTS = {"type", "text", "image", "video", "image_url", "video_url", "path", "url", "bytes", "cache_control"}


class VisualReader:
    """Reads the contents of one record's messages, handing out its media in order.

    Args:
        where: ``file:line`` or ``file#row`` of the record, for errors.
        root: folder relative paths start from.
        container: location of the file that holds the record, and its row there: names media given as bytes.
        media: entries of the record's media lists, with the column each came from.
        allowed: where media may lie.
    """

    def __init__(
        self,
        where: str,
        root: str,
        container: tuple[str, int],
        media: Mapping[VisualKind, tuple[str, Sequence[Any]]],
        allowed: AllowedRoots,
    ) -> None:
        self.visuals: list[VisualSource] = []
        self._where, self._root, self._container, self._media = where, root, container, media
        self._allowed = allowed
        self._taken: dict[VisualKind, int] = dict.fromkeys(_KINDS, 0)

    def read(self, content: Any) -> tuple[Part, ...]:
        """Parts of one message; its visuals are added to ``visuals``.

        Raises:
            DatasetError: the content is of an unknown kind, or asks for a visual the record does not list.
        """
        if isinstance(content, str):
            return self._read_tagged(content)
        if isinstance(content, Sequence) and not isinstance(content, bytes):
            return tuple(self._read_part(part) for part in content)
        raise self._error(
            f"a message's content must be text or a list of parts, found {json_kind(content)}; write it as one of these"
        )

    def finish(self) -> tuple[VisualSource, ...]:
        """All visuals, in placeholder order.

        Raises:
            DatasetError: the record lists more visuals than its messages place.
        """
        for kind in _KINDS:
            listed, placed = len(self._listed(kind)), self._taken[kind]
            if listed > placed:
                raise self._error(
                    f"{number_of(listed, kind)} {'is' if listed == 1 else 'are'} listed but the messages place "
                    f"{placed}; add a <{kind}> tag for each where it belongs, or remove those not shown"
                )
        return tuple(self.visuals)

    def _read_tagged(self, text: str) -> tuple[Part, ...]:
        parts: list[Part] = []
        for index, piece in enumerate(_TAG.split(text)):
            if index % 2:
                parts.append(self._take("image" if piece == "image" else "video"))
            elif piece:
                parts.append(Part("text", piece))
        return tuple(parts)

    def _read_part(self, part: Any) -> Part:
        if isinstance(part, str):
            return Part("text", part)
        if not isinstance(part, Mapping):
            raise self._error(
                f"a content part must be an object or text, found {json_kind(part)}; correct or remove it"
            )
        part = {key: value for key, value in part.items() if value is not None}
        kind = str(part.get("type"))
        if kind not in _TYPES_OF_PARTS:
            raise self._error(
                f"unknown content part type {part.get('type')!r}; known: {', '.join(_TYPES_OF_PARTS)}; "
                "correct it, or remove the part or the sample"
            )
        if unknown := sorted(part.keys() - _KEYS_OF_PARTS):
            raise self._error(
                f"a content part has {unknown[0]!r}, which is not supported; remove it (sizes and frame rates are set "
                "for the whole scan)"
            )
        if kind == "text":
            return Part("text", str(part.get("text", "")))
        visual: VisualKind = "video" if kind.startswith("video") else "image"
        for key in (kind, "path", "url", "bytes"):
            if key in part:
                return self._place(visual, part[key], str(len(self.visuals)))
        return self._take(visual)

    def _take(self, kind: VisualKind) -> Part:
        listed, index = self._listed(kind), self._taken[kind]
        if index >= len(listed):
            raise self._error(
                f"the messages place more {kind}s than the {len(listed)} listed; list the missing ones, or remove the "
                f"tags (a <{kind}> meant as text belongs in a content part of type text)"
            )
        self._taken[kind] += 1
        return self._place(kind, listed[index], f"{self._media[kind][0]}/{index}")

    def _listed(self, kind: VisualKind) -> Sequence[Any]:
        return self._media[kind][1] if kind in self._media else ()

    def _place(self, kind: VisualKind, entry: Any, cell: str) -> Part:
        if isinstance(entry, Mapping):
            entry = next((entry[key] for key in ("bytes", kind, "url", "path") if entry.get(key) is not None), None)
        if isinstance(entry, str) and entry.startswith("data:"):
            entry = self._decode_data_url(entry)
        if isinstance(entry, bytes):
            uri = f"{self._container[0]}#{self._container[1]}/{cell}"
            self.visuals.append(VisualSource(kind, uri, entry))
        elif isinstance(entry, str) and entry:
            self.visuals.append(VisualSource(kind, self._resolve(entry)))
        else:
            raise self._error(
                f"{kind} {cell} must be a path, URL or bytes, found {_entry_kind(entry)}; correct or remove it"
            )
        return Part(kind)

    def _resolve(self, uri: str) -> str:
        resolved = uri if is_url(uri) or Path(uri).is_absolute() else joined(self._root, uri)
        check_path(resolved, self._where)
        self._allowed.check(resolved, self._where)
        return resolved

    def _decode_data_url(self, url: str) -> bytes:
        header, _, payload = url.partition(",")
        try:
            if not header.endswith(";base64"):
                raise ValueError("it is not base64")
            return base64.b64decode(payload, validate=True)
        except (ValueError, binascii.Error) as error:
            raise self._error(
                f"the data URL {url[:40]!r}… cannot be decoded ({error}); correct or remove it"
            ) from error

    def _error(self, problem: str) -> DatasetError:
        return DatasetError(f"{self._where}: {problem}")


def _entry_kind(entry: Any) -> str:
    return "empty text" if entry == "" else json_kind(entry)
