"""Keeps the paths a dataset names inside the folders its user allows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trimtab.errors import DatasetError
from trimtab.media.source import local_path


class AllowedRoots:
    """Folders and URL prefixes; none given allows everything."""

    def __init__(self, roots: Sequence[str | Path] = ()) -> None:
        """Allow what lies in ``roots``, symbolic links resolved."""
        self._prefixes = [str(root) for root in roots if "://" in str(root)]
        self._folders = [os.path.realpath(root) for root in roots if "://" not in str(root)]
        self._any = not roots

    def check(self, uri: str, where: str) -> None:
        """Refuse a visual that lies elsewhere.

        Raises:
            DatasetError: names the record, the path and the roots.
        """
        if self._any:
            return
        path = local_path(uri)
        if path is None:
            inside = ".." not in uri and any(uri.startswith(prefix.rstrip("/") + "/") for prefix in self._prefixes)
        else:
            real = os.path.realpath(path)
            inside = any(os.path.commonpath([real, folder]) == folder for folder in self._folders)
        if not inside:
            allowed = ", ".join([*self._folders, *self._prefixes])
            raise DatasetError(f"{where}: {uri} is outside the allowed roots {allowed}; allow its folder or correct it")
