"""Writes the public address of the repository into pyproject.toml, before a release is built.

    python packaging/address.py https://HOST/OWNER/NAME

The repository does not contain its address, so that a copy of it never points to another one. With the address, the
description on a package index has pictures, and absolute links to the files of the released version; the metadata has
[project.urls]. .github/workflows/wheels.yml runs it with the address of the repository in which it runs.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path


def once(text: str, old: str, new: str) -> str:
    """The text with a line replaced that it must have once."""
    if text.count(f"\n{old}\n") != 1:
        raise SystemExit(f"pyproject.toml must have this line once: {old}")
    return text.replace(f"\n{old}\n", f"\n{new}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the public address of the repository into pyproject.toml.")
    parser.add_argument("address", help="such as https://HOST/OWNER/NAME")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the repository")
    options = parser.parse_args()
    address = options.address.rstrip("/")
    if not re.fullmatch(r"https://[\w.:-]+(/[\w.~-]+)+", address):
        parser.error(f"not an address of a repository: {address}")
    source = (options.root / "cuda_gctx" / "__init__.py").read_text()
    [version] = re.findall(r'^__version__ = "([^"]+)"', source, flags=re.MULTILINE)
    files = f"{address}/blob/v{version}"
    urls = {
        "Repository": address,
        "Documentation": f"{files}/docs/index.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    path = options.root / "pyproject.toml"
    text = path.read_text()
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    text = once(text, "[project.scripts]", f"[project.urls]\n{table}\n[project.scripts]")
    text = once(text, 'replacement = ""', f'replacement = "![\\\\1]({address}/raw/v{version}/\\\\2)\\n\\n"')
    text = once(text, r"replacement = '\1'", f"replacement = '[\\1]({files}/\\2)'")
    path.write_text(text)


if __name__ == "__main__":
    main()
