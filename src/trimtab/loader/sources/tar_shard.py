"""WebDataset shards: members of a tar archive that share a name up to its first dot are one record.

``.json`` holds the record's fields; a shard without them may have captions in ``.txt``. Media members are listed by
their place in the archive, so that reading one later fetches only its bytes.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from trimtab.errors import DatasetError
from trimtab.loader.sources.storage import name_of, open_file, size_of
from trimtab.media.archive_member import member_uri
from trimtab.schema.json_kind import json_kind
from trimtab.schema.metadata import VisualKind
from trimtab.schema.table import DatasetFile

_MEDIA: dict[str, VisualKind] = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"), "image"),
    **dict.fromkeys(("mp4", "webm", "mkv", "mov", "avi", "m4v"), "video"),
}
_COLUMNS = {"image": ("images", "image"), "video": ("videos", "video")}


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    extension: str
    offset: int
    size: int


class TarShard:
    """Records found by reading the archive's headers once; the digest is over names, places and sizes."""

    def __init__(self, location: str) -> None:
        self.location = location
        grouped: dict[str, list[_Member]] = {}
        for member in _members(location):
            key = _key(member.name)
            grouped.setdefault(key, []).append(member)
        self._keys = list(grouped)
        self._groups = list(grouped.values())
        digest = blake2b(repr(self._groups).encode(), digest_size=8).hexdigest()
        self.identity = DatasetFile(name_of(location), size_of(location), len(self), digest)

    def __len__(self) -> int:
        return len(self._groups)

    def record(self, row: int) -> dict[str, Any]:
        """The record of a row, with its media as URIs into the archive.

        Raises:
            DatasetError: its fields are not JSON, or it has neither fields nor a caption.
        """
        members = self._groups[row]
        texts = {m.extension: m for m in members if m.extension in ("json", "txt")}
        media = [member for member in members if member.extension in _MEDIA]
        record = self._fields(row, texts["json"]) if "json" in texts else self._captioned(row, texts, media)
        record.setdefault("id", self._keys[row])
        uris = {member.name: member_uri(self.location, member.name, member.offset, member.size) for member in media}
        by_name = {**uris, **{name_of(name): uri for name, uri in uris.items()}}
        for kind, columns in _COLUMNS.items():
            own = [uris[member.name] for member in media if _MEDIA[member.extension] == kind]
            column = next((column for column in columns if record.get(column) is not None), columns[0])
            listed = record.get(column)
            if listed is None:
                if own:
                    record[column] = own
                continue
            entries = listed if isinstance(listed, list) else [listed]
            record[column] = [by_name.get(entry, entry) if isinstance(entry, str) else entry for entry in entries]
        return record

    def where(self, row: int) -> str:
        """``shard.tar:key`` of a row."""
        return f"{self.location}:{self._keys[row]}"

    def _fields(self, row: int, member: _Member) -> dict[str, Any]:
        try:
            value = json.loads(self._read(member))
        except ValueError as error:
            raise DatasetError(f"{self.where(row)}: {member.name} is not valid JSON ({error}); correct it") from error
        if not isinstance(value, dict):
            raise DatasetError(
                f"{self.where(row)}: {member.name} must hold a JSON object, found {json_kind(value)}; correct it"
            )
        return value

    def _captioned(self, row: int, texts: dict[str, _Member], media: list[_Member]) -> dict[str, Any]:
        if "txt" not in texts:
            raise DatasetError(f"{self.where(row)}: has neither a .json nor a .txt member; add its conversation")
        tags = "".join(f"<{_MEDIA[member.extension]}>" for member in media)
        caption = self._read(texts["txt"]).decode("utf-8", errors="replace")
        return {"messages": [{"role": "user", "content": tags}, {"role": "assistant", "content": caption}]}

    def _read(self, member: _Member) -> bytes:
        with open_file(self.location) as stream:
            stream.seek(member.offset)
            return stream.read(member.size)


def _members(location: str) -> list[_Member]:
    try:
        with open_file(location) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            return [
                _Member(info.name, info.name.rpartition(".")[2].lower(), info.offset_data, info.size)
                for info in archive
                if info.isfile()
            ]
    except tarfile.TarError as error:
        raise DatasetError(
            f"{location}: not a readable tar archive ({error}); restore it (compressed archives cannot be read by "
            "ranges: unpack them to .tar)"
        ) from error


def _key(name: str) -> str:
    folder, separator, base = name.rpartition("/")
    return folder + separator + base.partition(".")[0]
