"""Write the tables that follow from CUDA's header, its runtime library and functions.def: the functions that are not
modelled, the variants with a default stream per thread, what errors say, the contract of each function as the recorder
and the tests read it, and the page of the documentation that lists all functions.

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
ROOT = HERE.parents[2]
DOCS = ROOT / "docs"
RECORDER = ROOT / "tests" / "hardware" / "recorder"
SENTENCES = RECORDER / "sentences.py"
CONTRACTS = RECORDER / "functions.json"

# Why functions are absent that have no newer variant and are not deprecated, by the beginning of their names.
REASONS = [
    (
        r"cuGL|cuEGL|cuVDPAU|cuGraphics|cuImportExternal|cuExternal|cuDestroyExternal|cuSignalExternal|cuWaitExternal"
        r"|cuGraph.*External|cuStream\w+CaptureToCig",
        "graphics, external memory and semaphores: there is nothing to share with",
    ),
    (
        r"cuMemPool(Export|Import)|cuDeviceGetNvSci|cuMulticast|cuLogical|cuDeviceGetClique|cuDeviceGetFabric|cuFabric",
        "pools between processes, fabrics and multicast: memory is shared by descriptors and handles",
    ),
    (
        r"cuTex|cuSurf|cuArray|cuMipmapped|cuMemMapArray|cuMemcpy3DPeer|cuDeviceGetTexture",
        "sparse arrays, those of several planes or of two devices, limits of textures: an array is one piece of memory",
    ),
    (
        r"cuLink|cuModuleLoadFat|cuLibrary|cuParam|cuDeviceGet(Host|P2P)Atomic|cuTensorMap|cuCoredump",
        "code is not linked or executed, so its results are unknown",
    ),
    (
        r"cuCtxGetExecAffinity|cuMemBatchDecompress|cuFlushGPUDirect|cuMemGetHandle|cuPointerSet",
        "the device says that it lacks the feature, or memory is for devices that there are none of",
    ),
    (
        r"cuStream(Copy|Get|Set)Attribute|cuGraphKernelNode(Copy|Set)Attribute",
        "attributes that are changed later: of caches and memory domains, which have no part in the times; others are "
        "set when a stream or a node is made",
    ),
    (r"cuGraph.*BatchMemOp", "nodes of several memory operations: a capture makes one of each"),
    (
        r"cuMemcpy(3D)?(Batch|WithAttributes)",
        "copies that may read their sources at another time than in the order of the stream: a copy has one time here",
    ),
    (r"cuMemGetLocation|cuStreamBeginRecapture", "newer than what was recorded, and the header leaves answers open"),
    (r"cuCheckpoint", "checkpoints: nothing of a process is outside of its own memory, so there is nothing to release"),
    (r"cuLogs", "logs: what the real driver writes into them is not documented"),
    (r"cuDevice(Unr|R)egisterAsync", "notifications of a budget of memory: nobody sets one"),
]
# Modelled functions that cuda.h does not declare.
OF_OTHER_HEADERS = {"cuProfilerStart", "cuProfilerStop"}


def of_the_runtime(name: str) -> Path:
    """A file of the wheel that contains the build's CUDA header."""
    for found in importlib.metadata.distributions(name="nvidia-cuda-runtime"):
        if (13, 4) <= tuple(map(int, found.version.split(".")[:2])) < (14, 0):
            for file in found.files or ():
                if file.name == name:
                    return Path(str(file.locate()))
    raise SystemExit(f"no {name} of CUDA 13.4 or newer: pip install 'nvidia-cuda-runtime>=13.4,<14'")


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
    pairs = re.findall(r"__CUDA_API_(PTDS|PTSZ)\((cu\w+)\)", (include / "cuda.h").read_text())
    return {symbol: f"_{suffix.lower()}" for suffix, symbol in pairs if symbol != "api"}


def errors(include: Path) -> list[str]:
    """The description of each CUresult: that of the runtime error with the same number."""
    runtime = ctypes.CDLL(str(of_the_runtime("libcudart.so.13")))
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    unknown = runtime.cudaGetErrorString(-1)
    lines = []
    for name, number in re.findall(r"^ +(CUDA_(?:SUCCESS|ERROR_\w+)) *= (\d+)", (include / "cuda.h").read_text(), re.M):
        text = runtime.cudaGetErrorString(int(number))
        words = name.removeprefix("CUDA_ERROR_").replace("_", " ").lower()  # of those that the runtime does not have
        lines.append(f'GCTX_SIM_ERROR({name}, "{words if text == unknown else text.decode()}")')
    return lines


ROW = re.compile(r"^GCTX_SIM_FUNCTION\((\w+), (\w+), (\d+)(?:, (.*))?\)$", re.MULTILINE)
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
            elif word != "takes_ns":
                row[word] = True
        found[symbol] = {**row, "needed": sorted(needed), "rules": rules}
    return found


def reason(symbol: str) -> str:
    return next(why for pattern, why in REASONS if re.match(pattern, symbol))


def since(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


IN_CAPTURE = {
    "safe": "",
    "about": "about captures",
    "joining": "draws its stream into the capture of its event",
    "whole": "disturbs the captures of the whole context",
    "awaited": "disturbs the captures of the whole context, and of its event",
    "own": "refused on a stream that is capturing",
    "context": "disturbs the captures of its context",
    "beside": "unsafe, but on the stream that captures it",
    "unsafe": "unsafe",
}


def described(row: dict[str, Any]) -> str:
    """The conditions of a contract on arguments, in words."""
    names = [re.split(r"[ *]", one)[-1] for one in row["parameters"]]
    said = []
    if row["needed"]:
        said.append("not null: " + ", ".join(f"`{names[i]}`" for i in row["needed"]))
    for rule in row["rules"]:
        name, values = f"`{names[rule['index']]}`", rule["values"]
        if rule["kind"] == "flags":
            text = f"{name} 0" if values[0] == 0 else f"{name} in the bits {values[0]:#x}"
        elif rule["kind"] == "single":
            text = f"{name} with one bit of {values[0]:#x} at most"
        elif rule["kind"] == "implies":
            text = f"{name} with {values[1]:#x} where it has {values[0]:#x}"
        elif values[0] == values[1]:
            text = f"{name} {values[0]}"
        else:
            top = {2**31 - 1: "", 2**32 - 1: "", 2**64 - 1: ""}.get(values[1], f" to {values[1]}")
            text = f"{name} from {values[0]}{top}"
        if "before" in rule:
            text += f" before {since(rule['before'])}"
        if "from" in rule:
            text += f" from {since(rule['from'])} on"
        said.append(text)
    return "; ".join(said)


def sentences() -> dict[int, tuple[str, str]]:
    """The sentences of the header that are tried, by their numbers: the function, and what is said of it."""
    found = re.findall(r'^@says\(\s*(\d+),\s*"(\w+)",\s*"(.*)",?\s*\)$', SENTENCES.read_text(), re.MULTILINE)
    return {int(number): (function, text) for number, function, text in found}


def page(rows: dict[str, dict[str, Any]], absent: dict[str, tuple[str, int]], include: Path) -> str:
    groups: dict[str, list[str]] = defaultdict(list)
    bases = {row["base"] for row in rows.values()} | {"cuGraphInstantiate"}  # now cuGraphInstantiateWithFlags
    text = (include / "cuda.h").read_text()
    header = since(int(re.findall(r"#define CUDA_VERSION (\d+)", text)[0]))
    deprecated = set(re.findall(r"__CUDA_DEPRECATED CUresult CUDAAPI (cu\w+)", text))
    for symbol, (base, _) in absent.items():
        why = "older variants of functions that are modelled" if base in bases else None
        groups[why or ("deprecated by the header" if base in deprecated else reason(symbol))].append(symbol)
    listed = {symbol: row for symbol, row in rows.items() if symbol not in OF_OTHER_HEADERS}
    everything = len(listed) + len(absent)
    lines = [
        "# The functions of the software driver",
        "",
        f"The header of CUDA {header} declares {everything} functions, old variants included, and variants",
        f"with a default stream per thread. The [software driver](../software-driver.md) models {len(listed)},",
        f"and the other {len(absent)} are exported too: each answers",
        "`CUDA_ERROR_NOT_SUPPORTED`, names itself once on standard error, and is counted in the ledger. It also",
        f"models {', '.join(f'`{symbol}`' for symbol in sorted(OF_OTHER_HEADERS))}, which `cuda.h` does not declare.",
        "Made by `software_driver/cpp/abi/make_tables.py` from `functions.def`, which the driver checks in every call.",
        "",
        "## Modelled",
        "",
        "- **Arguments**: any other value is `CUDA_ERROR_INVALID_VALUE`.",
        "- **Captures**: an *unsafe* call answers `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` and invalidates the captures",
        "  that the thread's capture mode protects: with the mode `GLOBAL`, those of all threads.",
        "  On a stream whose capture is invalid, what refuses to be captured answers that code again, and all else",
        "  `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`, but for calls *about captures*.",
        "- **Context**: *current* needs a context that is current to the thread, else `CUDA_ERROR_INVALID_CONTEXT`;",
        "  *null: current* takes a null context for it; what *owned* makes goes with that context.",
        "- Inside host functions and callbacks all answer `CUDA_ERROR_NOT_PERMITTED`, but those that are marked.",
        "- **Sentences**: the numbers of sentences of the header that are tried one by one, listed below.",
        "",
        "| function (since) | arguments | captures | context | in callbacks | sentences |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for symbol, row in sorted(rows.items()):
        words = {"context": "current", "owned": "owned", "or_current": "null: current", "early": "before `cuInit`"}
        context = ", ".join(text for word, text in words.items() if row.get(word))
        callback = "allowed" if row.get("early") or row.get("in_callbacks") else ""
        cells = (
            described(row),
            IN_CAPTURE[row["in_capture"]],
            context,
            callback,
            ", ".join(str(number) for number in row.get("says", [])),
        )
        lines.append(f"| `{symbol}` ({since(row['since'])}) | {' | '.join(cells)} |")
    lines += [
        "",
        "## Sentences",
        "",
        "What the header says of single functions, in other words. `tests/hardware/recorder/sentences.py` tries each",
        "on simulated drivers, and the recorder on a card.",
        "",
        "| number | function | sentence |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {number} | `{function}` | {text} |" for number, (function, text) in sorted(sentences().items())]
    lines += [
        "",
        "## Absent",
        "",
        "| why | functions |",
        "| --- | --- |",
    ]
    for why, symbols in sorted(groups.items(), key=lambda item: -len(item[1])):
        lines.append(f"| {why} ({len(symbols)}) | {', '.join(f'`{symbol}`' for symbol in sorted(symbols))} |")
    return "\n".join(line.rstrip() for line in lines) + "\n"


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
                    f"GCTX_SIM_ABSENT({symbol}, {base}, {version})"
                    for symbol, (base, version) in sorted(absent.items())
                ),
                "",
            ]
        ),
        HERE / "per_thread.def": "\n".join(
            [
                f"// Modelled functions with a variant whose default stream is the calling thread's own. {made}",
                *(
                    f"GCTX_SIM_PER_THREAD({symbol}, {symbol}{suffixes[symbol]})"
                    for symbol in known
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
        CONTRACTS: "{\n" + ",\n".join(f'"{symbol}": {json.dumps(row)}' for symbol, row in rows.items()) + "\n}\n",
        DOCS / "appendix" / "driver-functions.md": page(rows, absent, include),
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
