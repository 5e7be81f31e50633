"""How Sphinx builds the site: `make docs`, every warning an error."""

from __future__ import annotations

import re
from typing import Any

project = "trimtab"
copyright = "the trimtab authors, Apache-2.0"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "trimtab"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
exclude_patterns = ["images"]
highlight_language = "none"  # blocks that name no language are commands or diagrams
myst_heading_anchors = 3  # pages link to each other's headings, here and on GitHub
nitpicky = True
templates_path: list[str] = []

_REPOSITORY = "https://github.com/trimtab/trimtab/blob/main/"
_CODE = re.compile(r'(?<=<span class="pre">)[^<]+')
_JOINT = re.compile(r"([._/=,|])(?=[A-Za-z&])")
_LINK_OUT = re.compile(r"(?<!!)(\[[^\]]*\])\(\.\./")


def link_to_the_repository(app: Any, page: str, source: list[str]) -> None:
    """Links to files outside docs/, which are no part of the site, lead to the repository."""
    source[0] = _LINK_OUT.sub(rf"\1({_REPOSITORY}", source[0])


def break_names(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Long names in text may break behind their joints, where a copy has nothing; options stay with their dashes."""
    if "body" in context:
        joined = _CODE.sub(lambda name: _JOINT.sub(r"\1<wbr>", name[0]), context["body"])
        context["body"] = joined.replace('<span class="pre">--', '<span class="pre option">--')


def setup(app: Any) -> None:
    """Register what the site needs beyond its extensions."""
    app.connect("source-read", link_to_the_repository)
    app.connect("html-page-context", break_names)
