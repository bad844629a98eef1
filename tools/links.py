"""Fails where a page of the built site links to a page, a file or an anchor that is not there.

    python tools/links.py build/docs

Links to other sites are not followed.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of_tag = dict(attrs)
        self.anchors.update(filter(None, (of_tag.get("id"), of_tag.get("name"))))
        self.links += filter(None, (of_tag.get("href"), of_tag.get("src")))


def dead_links(site: Path) -> list[str]:
    """Each dead link of a site, after the page that has it."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not target.exists() or (target in pages and anchor not in pages[target].anchors):
                dead.append(f"{path.relative_to(site.resolve())}: {link}")
    return dead


def main(words: list[str]) -> int:
    if len(words) != 1 or not Path(words[0], "index.html").is_file():
        print(__doc__, file=sys.stderr)
        return 2
    dead = dead_links(Path(words[0]))
    print(*dead, sep="\n", file=sys.stderr)
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
