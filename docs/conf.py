"""The documentation as a site: make docs."""

import importlib.metadata
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))
# The compiled modules, which have the docstrings; stub_signatures adds the types of their stubs.
os.environ["SPHINX_AUTODOC_USE_NATIVE_MODULES"] = "1"

project = "cuda_gctx"
release = importlib.metadata.version("cuda-gctx")
version = ".".join(release.split(".")[:2])
copyright = "the authors of cuda_gctx"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "stub_signatures",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_extensions", "_templates", "evidence"]
# Pages of the appendix and of the repository itself stand in no menu; a test knows which pages those are.
suppress_warnings = ["toc.not_included"]
default_role = "literal"
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist"]
# The anchors that links between pages use are those that a forge makes of headings.
myst_heading_anchors = 4

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "undoc-members": True,
}
# The newer implementation fails where only a handler of autodoc-process-signature knows a signature.
autodoc_use_legacy_class_based = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autoclass_content = "class"
python_use_unqualified_type_names = True
maximum_signature_line_length = 90
add_module_names = False

html_theme = "furo"
html_title = f"cuda_gctx {release}"
templates_path = ["_templates"]
# The parts of the theme, and the link to the other versions.
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
        "sidebar/versions.html",
    ]
}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#3f6f00",
        "color-brand-content": "#3f6f00",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8fce3a",
        "color-brand-content": "#8fce3a",
    },
}
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True


def link_evidence(app: object, page: str, source: list[str]) -> None:
    """Makes downloads of links to files of docs/evidence, which are no pages of the site."""
    link = r"\[([^\]]+)\]\(((?:\.\./)*evidence/[\w.-]+)\)"
    source[0] = re.sub(link, r"{download}`\1 <\2>`", source[0])


def setup(app: object) -> None:
    app.connect("source-read", link_evidence)  # type: ignore[attr-defined]
