"""The end of a page whose sentences quote measurements says where they were made: its front matter has that."""

from __future__ import annotations

import html
from typing import Any

from sphinx.application import Sphinx


def add_origin(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    where = app.env.metadata.get(page, {}).get("measured")
    if where:
        context["body"] += (
            f'<p class="measured">Measured on {html.escape(where)}.</p>'
        )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", add_origin)
    return {"parallel_read_safe": True}
