"""The end of a page says where its numbers were measured: its front matter has that of the sentences and tables, and
docs/page-outputs.json that of outputs which were recorded on a GPU.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

RECORDED = "<!-- recorded -->\n"


def add_origin(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    if page not in app.env.all_docs:
        return
    said = []
    where = app.env.metadata.get(page, {}).get("measured")
    if where:
        said.append(f"Measured on {where}.")
    if RECORDED in Path(app.env.doc2path(page)).read_text():
        outputs = json.loads((Path(app.srcdir) / "page-outputs.json").read_text())
        card = f"{outputs['card']}, driver {outputs['driver']}, {outputs['date']}"
        said.append(f"Outputs with a card's times: recorded on {card}.")
    if said:
        context["body"] += (
            f'<p class="measured">{html.escape(" ".join(said))}</p>'
        )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", add_origin)
    return {"parallel_read_safe": True}
