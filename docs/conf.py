"""How Sphinx builds the site: `make docs`, every warning an error."""

from __future__ import annotations

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
