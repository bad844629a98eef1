"""Write the tables that follow from CUDA's headers, its runtime library and functions.def: the functions that are not
modelled, the variants with a default stream per thread, what errors say, the names and errors of the runtime, and the
contract of each function as the recorder and the tests read it.

    python software_driver/cpp/abi/make_tables.py [--check]

With --check, nothing is written, and the exit status is 1 if a file is out of date.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib.metadata
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RUNTIME = HERE.parent / "runtime"
RECORDER = HERE.parents[1] / "tests" / "hardware" / "recorder"
CONTRACTS = RECORDER / "functions.json"

# Modelled functions that cuda.h does not declare.
OF_OTHER_HEADERS = {"cuProfilerStart", "cuProfilerStop"}


def of_the_runtime(name: str) -> Path:
    """A file of the wheel that contains the build's CUDA header."""
    for found in importlib.metadata.distributions(name="nvidia-cuda-runtime"):
        if (13, 5) <= tuple(map(int, found.version.split(".")[:2])) < (14, 0):
            for file in found.files or ():
                if file.name == name:
                    return Path(str(file.locate()))
    raise SystemExit(f"no {name} of CUDA 13.5 or newer: pip install 'nvidia-cuda-runtime>=13.5,<14'")


@functools.cache
def preprocessed(include: Path) -> str:
    return subprocess.run(
        ["c++", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-x", "c++", str(include / "cuda.h")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def declared(include: Path) -> dict[str, tuple[str, int]]:
    """Each function of the header, with its base name and the version that introduced it."""
    text = preprocessed(include)
    variants: dict[str, list[str]] = defaultdict(list)
    for symbol in sorted(set(re.findall(r"CUresult\s+(cu\w+)\s*\(", text))):
        match = re.fullmatch(r"(cu\w+?)(_v\d+)?(_pt[sd][sz])?", symbol)
        assert match is not None
        if match[3] is None:
            variants[match[1]].append(symbol)
    typedefs = (include / "cudaTypedefs.h").read_text() + (include / "cudaProfilerTypedefs.h").read_text()
    versions: dict[str, set[int]] = defaultdict(set)
    for base, version in re.findall(r"\*PFN_(cu\w+?)_v(\d+)\)", typedefs):
        versions[base].add(int(version))
    found = {}
    for base, symbols in variants.items():
        symbols.sort(key=lambda symbol: int((re.search(r"_v(\d+)$", symbol) or ["", "1"])[1]))
        for symbol, version in zip(symbols, sorted(versions[base]), strict=True):
            found[symbol] = (base, version)
    return found


def per_thread(include: Path) -> dict[str, str]:
    """The functions that have a variant with a default stream per thread, and the variant's suffix."""
    return dict(re.findall(r"CUresult\s+(cu\w+)(_pt[sd][sz])\s*\(", preprocessed(include)))


@functools.cache
def runtime_library() -> ctypes.CDLL:
    runtime = ctypes.CDLL(str(of_the_runtime("libcudart.so.13")))
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    return runtime


def errors(include: Path) -> list[str]:
    """The description of each CUresult: that of the runtime error with the same number."""
    runtime = runtime_library()
    unknown = runtime.cudaGetErrorString(-1)
    lines = []
    for name, number in re.findall(r"^ +(CUDA_(?:SUCCESS|ERROR_\w+)) *= (\d+)", (include / "cuda.h").read_text(), re.M):
        text = runtime.cudaGetErrorString(int(number))
        words = name.removeprefix("CUDA_ERROR_").replace("_", " ").lower()  # of those that the runtime does not have
        lines.append(f'SOFTWARE_DRIVER_ERROR({name}, "{words if text == unknown else text.decode()}")')
    return lines


def runtime_names() -> list[str]:
    """Every function that the runtime library exports."""
    command = ["nm", "-D", "--defined-only", str(of_the_runtime("libcudart.so.13"))]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted(re.findall(r" [TW] (\w+)@", listed))


def runtime_errors(include: Path) -> list[str]:
    """Each cudaError_t with its description."""
    text = (include / "driver_types.h").read_text()
    body = re.search(r"enum __device_builtin__ cudaError\s*\{(.*?)\n\}", text, re.S)
    assert body is not None
    return [
        f'CUDART_ERROR({name}, "{runtime_library().cudaGetErrorString(int(number)).decode()}")'
        for name, number in re.findall(r"^ +(cuda\w+) *= *(\d+)", body[1], re.M)
    ]


ROW = re.compile(r"^SOFTWARE_DRIVER_FUNCTION\((\w+), (\w+), (\d+)(?:, (.*))?\)$", re.MULTILINE)
# Types of functions that a program gives; every other type without a star is a handle or a number.
CALLBACKS = {"CUhostFn", "CUstreamCallback", "CUoccupancyB2DSize"}


def modelled() -> dict[str, tuple[str, int]]:
    rows = ROW.findall((HERE / "functions.def").read_text())
    return {symbol: (base, int(version)) for symbol, base, version, _ in rows}


def numbers(header: str) -> dict[str, int]:
    """The constants that the contracts name."""
    found = {"INT_MAX": 2**31 - 1, "UINT_MAX": 2**32 - 1, "SIZE_MAX": 2**64 - 1}
    constant = r"(0x[0-9a-fA-F]+|\d+)(?: *<< *(\d+))?"
    for pattern in (rf"\b(CU\w+) *= *{constant}", rf"#define +(CU\w+) +{constant}"):
        for name, value, shift in re.findall(pattern, header):
            found.setdefault(name, int(value, 0) << int(shift or 0))
    found["CU_FUNC_ATTRIBUTE_MAX"] = 1 + max(
        value for name, value in found.items() if name.startswith("CU_FUNC_ATTRIBUTE_")
    )
    return found


def value_of(text: str, known: dict[str, int]) -> int:
    total = 0
    for term in text.split("|"):
        name, _, less = term.strip().partition(" - ")
        total |= (known[name] if name in known else int(name, 0)) - int(less or 0)
    return total


def contracts(include: Path) -> dict[str, dict[str, Any]]:
    """The contract of each function in functions.def, with its parameters from the header."""
    header = (include / "cuda.h").read_text()
    known = numbers(header)
    declared = re.findall(r"CUresult\s+(?:CUDAAPI\s+)?(cu\w+)\s*\(([^()]*)\)", preprocessed(include))
    parameters = {symbol: [" ".join(one.split()) for one in given.split(",")] for symbol, given in declared}
    found = {}
    for symbol, base, version, text in ROW.findall((HERE / "functions.def").read_text()):
        names = [one for one in parameters.get(symbol, ["void"]) if one != "void"]
        row: dict[str, Any] = {"base": base, "since": int(version), "parameters": names, "in_capture": "safe"}
        needed = {
            i
            for i, one in enumerate(names)
            if ("*" in one and not re.match(r"(const )?void ?\*\w", one.replace(" *", "*", 1)))
            or one.split()[0] in CALLBACKS
        }
        rules: list[dict[str, Any]] = []
        for word, given in re.findall(r"\.(\w+)\(([^()]*)\)", text):
            values = [one.strip() for one in given.split(",")]
            if word in ("null", "need"):
                change = needed.difference_update if word == "null" else needed.update
                change(int(one) for one in values)
            elif word in ("flags", "single", "range", "implies"):
                rules.append(
                    {"kind": word, "index": int(values[0]), "values": [value_of(one, known) for one in values[1:]]}
                )
            elif word == "says":
                row["says"] = [int(one) for one in values]
            elif word in ("from", "before"):
                rules[-1][word] = int(given)
            elif word == "about_captures":
                row["in_capture"] = "about"
            elif word.startswith(("unsafe", "disturbs_")):
                row["in_capture"] = word.removeprefix("disturbs_").removeprefix("unsafe_")
            elif word not in ("takes_ns", "reworded", "follows", "lacks"):
                row[word] = True
        found[symbol] = {**row, "needed": sorted(needed), "rules": rules}
    return found


def files() -> dict[Path, str]:
    """The contents of the generated files."""
    include = of_the_runtime("cuda.h").parent
    functions, known = declared(include), modelled()
    wrong = {symbol: row for symbol, row in known.items() if functions.get(symbol, row) != row}
    extra = known.keys() - functions.keys()
    if wrong or extra != OF_OTHER_HEADERS:
        raise SystemExit(f"functions.def does not fit the header: {wrong or extra}")
    absent = {symbol: row for symbol, row in functions.items() if symbol not in known}
    rows = contracts(include)
    suffixes = per_thread(include)
    made = "Made by make_tables.py from CUDA's header."
    return {
        HERE / "absent.def": "\n".join(
            [
                f"// The functions of the driver that are not modelled, in the columns of functions.def. {made}",
                *(
                    f"SOFTWARE_DRIVER_ABSENT({symbol}, {base}, {version})"
                    for symbol, (base, version) in sorted(absent.items())
                ),
                "",
            ]
        ),
        HERE / "per_thread.def": "\n".join(
            [
                f"// Functions with a variant whose default stream is the calling thread's own. {made}",
                *(
                    f"SOFTWARE_DRIVER_PER_THREAD({symbol}, {symbol}{suffixes[symbol]})"
                    for symbol in known
                    if symbol in suffixes
                ),
                *(
                    f"SOFTWARE_DRIVER_ABSENT_PER_THREAD({symbol}, {symbol}{suffixes[symbol]})"
                    for symbol in sorted(absent)
                    if symbol in suffixes
                ),
                "",
            ]
        ),
        HERE / "errors.def": "\n".join(
            [
                "// One line per CUresult: its name, and what the driver says of it. Made by make_tables.py.",
                *errors(include),
                "",
            ]
        ),
        RUNTIME / "names.def": "\n".join(
            [
                "// The functions that the CUDA runtime exports. Made by make_tables.py.",
                *(f"CUDART_NAME({name})" for name in runtime_names()),
                "",
            ]
        ),
        RUNTIME / "errors.def": "\n".join(
            [
                "// One line per cudaError_t: its name, and what the runtime says of it. Made by make_tables.py.",
                *runtime_errors(include),
                "",
            ]
        ),
        CONTRACTS: "{\n" + ",\n".join(f'"{symbol}": {json.dumps(row)}' for symbol, row in rows.items()) + "\n}\n",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    made = files()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"{path} is out of date", file=sys.stderr)
        else:
            path.write_text(made[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
