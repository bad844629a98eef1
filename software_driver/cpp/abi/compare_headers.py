"""Compare what cuda.h says of the modelled functions in each modelled CUDA version, and fail where a text changes and
no row of functions.def says so.

    python software_driver/cpp/abi/compare_headers.py [FOLDER]

Downloads the wheels of the headers (25 MB) into FOLDER, or into a temporary one. A row says of a version that its
header rewords the text (`reworded`), that the driver follows the new text (`follows`), or that it does not do what the
new text adds (`lacks`, with the reason: `Lack` in contract.hpp).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import make_tables

# The last wheel of each modelled version that has one: there was no release of 12.7.
WHEELS = {
    12030: "12.3.101",
    12040: "12.4.127",
    12050: "12.5.82",
    12060: "12.6.77",
    12080: "12.8.90",
    12090: "12.9.79",
    13000: "13.0.96",
    13010: "13.1.80",
    13020: "13.2.75",
    13030: "13.3.29",
    13040: "13.4.92",
    13050: "13.5.37",
}
WITHOUT_WHEEL = {12070}
WORDS = ("reworded", "follows", "lacks")
DECLARATION = re.compile(
    r"/\*\*((?:(?!\*/).)*)\*/\s*(?:#[^\n]*\n\s*)*(?:__CUDA_DEPRECATED\s+)?CUresult\s+CUDAAPI\s+(\w+?)(?:_v\d+)?\s*\(",
    re.DOTALL,
)


def modelled_versions() -> set[int]:
    listed = re.search(
        r"driver_versions\{(.*?)\}", (make_tables.HERE.parent / "machine" / "spec.hpp").read_text(), re.S
    )
    assert listed is not None
    return set(map(int, re.findall(r"\d+", listed[1])))


def header(version: int, folder: Path) -> str:
    """cuda.h of a version, from its wheel."""
    name = "nvidia-cuda-runtime" + ("-cu12" if version < 13000 else "")
    kept = folder / str(version)
    if not kept.exists():
        command = ["pip", "download", "-q", "--no-deps", "--dest", str(kept), f"{name}=={WHEELS[version]}"]
        subprocess.run([sys.executable, "-m", *command], check=True)
    [wheel] = kept.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        [path] = [one for one in content.namelist() if one.endswith("/cuda.h")]
        return content.read(path).decode()


def sentences(text: str) -> list[str]:
    """The sentences of a comment, without markup, references and punctuation."""
    text = re.split(r"\\sa\b|\\notefnerr|\\note_", re.sub(r"\n \* ?", "\n", text))[0]
    text = re.sub(r"\\code.*?\\endcode", "", text, flags=re.DOTALL)
    text = re.sub(r"\\(?:p|e|b|c|ref|note|brief|param|returns?)\b|::|\*|<[^>]*>", "", text)
    parts = re.split(r"(?<=[.:;])\s+|, (?=CUDA_ERROR)", " ".join(text.split()))
    plain = (re.sub(r"[^\w ]|_v\d\b", "", part).lower().strip() for part in parts)
    return [one for one in plain if one]


def said_of(header: str) -> dict[str, list[str]]:
    """The sentences about each function of a header, by its base name."""
    return {name: sentences(text) for text, name in DECLARATION.findall(header) if "\\brief" in text}


def changes(headers: dict[int, str]) -> dict[tuple[str, int], list[str]]:
    """The sentences that go (-) and come (+) from each header to the next one, by function and version."""
    found = {}
    said = {version: said_of(text) for version, text in sorted(headers.items())}
    for (_, before), (version, after) in zip(list(said.items())[:-1], list(said.items())[1:], strict=True):
        for name in before.keys() & after.keys():
            went = [f"- {one}" for one in before[name] if one not in after[name]]
            came = [f"+ {one}" for one in after[name] if one not in before[name]]
            if went or came:
                found[name, version] = went + came
    return found


def rows() -> dict[tuple[str, int], str]:
    """The words of functions.def about changed texts, by function and version."""
    found = {}
    for _, base, _, contract in make_tables.ROW.findall((make_tables.HERE / "functions.def").read_text()):
        for word, given in re.findall(rf"\.({'|'.join(WORDS)})\((?:Lack::\w+, )?([^()]*)\)", contract):
            found.update({(base, int(version)): word for version in given.split(",")})
    return found


def complaints(changed: dict[tuple[str, int], list[str]], said: dict[tuple[str, int], str]) -> list[str]:
    """A paragraph for each change of a modelled function without a row, and for each row without a change."""
    modelled = {base for base, _ in make_tables.modelled().values()}
    missing = [key for key in changed if key[0] in modelled and key not in said]
    return [
        *(
            f"{name} {version}: no row says that its text changes\n  " + "\n  ".join(changed[name, version])
            for name, version in sorted(missing)
        ),
        *(
            f"{name} {version}: its text does not change, and a row says {said[name, version]}"
            for name, version in sorted(said.keys() - changed.keys())
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    folder = parser.parse_args().folder
    if unknown := modelled_versions() - WITHOUT_WHEEL - WHEELS.keys():
        print(f"no header is known of {sorted(unknown)}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        headers = {version: header(version, folder or Path(temporary)) for version in WHEELS}
    said = rows()
    found = complaints(changes(headers), said)
    print("\n".join(found))
    counts = ", ".join(f"{sum(one == word for one in said.values())} {word}" for word in WORDS)
    print(f"{len(headers)} headers: {counts}; {len(found)} complaints")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
