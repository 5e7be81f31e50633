"""Words of a command, as a shell takes them."""

from __future__ import annotations

import re
import shlex

_PLAIN = re.compile(r"[\w@%+=:,./\[\]-]+")


def word(text: str) -> str:
    """The text in quotes where a shell would split or read it; lists such as ``data=[a,b]`` stand as in the docs."""
    return text if _PLAIN.fullmatch(text) else shlex.quote(text)
