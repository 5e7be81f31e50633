"""Text of a page in which long names may break, behind the marks that join their words and nowhere else."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

_JOINT = re.compile(r"([._/=])(?=[A-Za-z])")


def breakable(text: str) -> Markup:
    """The text escaped, with a place to break behind each dot, underscore, slash or equals sign before a letter."""
    return Markup("<wbr>").join(escape(part) for part in _JOINT.sub("\\1\0", text).split("\0"))
