"""Text that any terminal, table and file takes."""

from __future__ import annotations


def printable(text: str, encoding: str = "utf-8") -> str:
    r"""The text, what an encoding does not hold written as ``\udcff``; UTF-8 lacks only halves of surrogate pairs."""
    return text.encode(encoding, "backslashreplace").decode(encoding)
