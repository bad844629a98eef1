"""Writes the public address of the repository into pyproject.toml, before a release is built.

    python packaging/address.py https://HOST/OWNER/NAME [--site https://HOST/PATH]
    python packaging/address.py --version-is VERSION

The second form changes nothing, and fails if the package has another version.

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
    parser.add_argument("address", nargs="?", help="such as https://HOST/OWNER/NAME")
    parser.add_argument("--site", help="the address of the documentation, which has a folder for each version")
    parser.add_argument("--version-is", metavar="VERSION", help="fail unless this is the version of the package")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the repository")
    options = parser.parse_args()
    source = (options.root / "cuda_gctx" / "__init__.py").read_text()
    [version] = re.findall(r'^__version__ = "([^"]+)"', source, flags=re.MULTILINE)
    if options.version_is is not None:
        if options.version_is != version:
            raise SystemExit(f"the package has version {version}, not {options.version_is}")
        return
    address = (options.address or "").rstrip("/")
    if not re.fullmatch(r"https://[\w.:-]+(/[\w.~-]+)+", address):
        parser.error(f"not an address of a repository: {address}")
    files = f"{address}/blob/v{version}"
    urls = {
        "Repository": address,
        "Documentation": f"{options.site.rstrip('/')}/v{version}/" if options.site else f"{files}/docs/index.md",
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
