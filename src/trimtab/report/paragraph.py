"""Paragraphs of a page: sentences with code in them, or a whole command."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from trimtab.report.sections import Command

_CODE = re.compile(r"`([^`]+)`")


def paragraph(text: str) -> Markup:
    """The text escaped, as an element; words in backticks as code."""
    if isinstance(text, Command):
        return Markup('<pre class="command"><code>{}</code></pre>').format(str(text))
    return Markup("<p>{}</p>").format(Markup(_CODE.sub(r"<code>\1</code>", str(escape(text)))))
