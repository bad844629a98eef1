"""Writes the first page of a folder with the sites of several versions, and the page that lists them.

    python tools/site.py build/docs

Each version has a folder of its own, with its number as the name. The first page leads to the newest version.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>cuda_gctx: {title}</title>{head}
</head>
<body>
{body}
</body>
</html>
"""


def number_of(version: str) -> tuple[tuple[int, ...], bool, str]:
    """The order of versions: by their numbers, and a release after its candidates."""
    numbers, rest = re.fullmatch(r"v?(\d+(?:\.\d+)*)(.*)", version).groups()  # type: ignore[union-attr]
    return tuple(map(int, numbers.split("."))), not rest, rest


def versions_in(site: Path) -> list[str]:
    """The versions that have a site, the newest first."""
    names = [folder.name for folder in site.iterdir() if (folder / "index.html").is_file()]
    return sorted((name for name in names if re.match(r"v?\d", name)), key=number_of, reverse=True)


def write_pages(site: Path) -> None:
    versions = versions_in(site)
    links = [f'<li><a href="{escape(version)}/index.html">{escape(version)}</a></li>' for version in versions]
    body = "\n".join(["<h1>Versions of cuda_gctx</h1>", "<ul>", *links, "</ul>"])
    (site / "versions.html").write_text(PAGE.format(title="versions", head="", body=body))
    newest = f"{escape(versions[0])}/index.html"
    head = f'\n<meta http-equiv="refresh" content="0; url={newest}">'
    body = f'<a href="{newest}">The documentation of version {escape(versions[0])}</a>'
    (site / "index.html").write_text(PAGE.format(title="documentation", head=head, body=body))


def main(words: list[str]) -> int:
    if len(words) != 1 or not Path(words[0]).is_dir() or not versions_in(Path(words[0])):
        print(__doc__, file=sys.stderr)
        return 2
    write_pages(Path(words[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
