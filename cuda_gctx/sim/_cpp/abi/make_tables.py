"""Write the tables that follow from CUDA's header and its runtime library: the functions that are not modelled, the
variants with a default stream per thread, what errors say, and the page of the documentation that lists all functions.

    python cuda_gctx/sim/_cpp/abi/make_tables.py [--check]

With --check, nothing is written, and the exit status is 1 if a file is out of date.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[3] / "docs"

# Why functions are absent, by the beginning of their names; the first that fits counts.
REASONS = [
    (
        r"cuGL|cuEGL|cuVDPAU|cuGraphics|cuD3D|cuImportExternal|cuExternal|cuDestroyExternal|cuSignalExternal|cuWaitExternal",
        "graphics and external memory: there is nothing to share with",
    ),
    (r"cuCoredump", "core dumps: nothing is executed"),
    (
        r"cuIpc|cuMemPool(Export|Import)|cuDeviceGetNvSci|cuMulticast|cuLogical",
        "sharing between processes and fabrics: every process has a simulated machine of its own",
    ),
    (
        r"cuTex|cuSurf|cuArray|cuMipmapped|cuMemcpy.*[AaD]to[AH]|cuMemcpy(2D|3D)|cuModuleGet(Tex|Surf)",
        "old variants, texture references, sparse arrays and arrays of several planes",
    ),
    (
        r"cuMem(Map|Unmap|Address(Reserve|Free)|Create|Release|SetAccess|GetAccess|GetAllocation|Retain|Export|Import|GetHandle)",
        "virtual memory management",
    ),
    (
        r"cuGraph|cuUserObject|cuStream(BeginCaptureTo|BeginRecapture|UpdateCapture)|cuThreadExchange|cuDevice(Get|Set)Graph|cuDeviceGraph",
        "old variants, and nodes of external semaphores and of memory operations",
    ),
    (r"cuStream(Write|Wait|Batch)", "memory operations of streams"),
    (
        r"cuLink|cuModuleLoadFat|cuLibrary|cuKernel|cuFunc|cuParam|cuLaunch|cuOccupancy",
        "code is not linked or executed, so its results are unknown",
    ),
    (r"cuCheckpoint|cuProcess", "checkpoints of processes"),
    (
        r"cuCoord|cuDeviceRegister|cuDeviceUnregister|cuFlushGPUDirect|cuDeviceGetTexture|cuDeviceGetHost|cuDeviceGetDev|cuDeviceGetProp",
        "rarely used queries",
    ),
]
OTHER = "nobody has needed it yet"
# Modelled functions that cuda.h does not declare.
OF_OTHER_HEADERS = {"cuProfilerStart", "cuProfilerStop"}


def of_the_runtime(name: str) -> Path:
    """A file of the wheel whose header the package is built with."""
    for found in importlib.metadata.distributions(name="nvidia-cuda-runtime"):
        if (13, 4) <= tuple(map(int, found.version.split(".")[:2])) < (14, 0):
            for file in found.files or ():
                if file.name == name:
                    return Path(str(file.locate()))
    raise SystemExit(f"no {name} of CUDA 13.4 or newer: pip install 'nvidia-cuda-runtime>=13.4,<14'")


def declared(include: Path) -> dict[str, tuple[str, int]]:
    """Each function of the header, with its base name and the version that introduced it."""
    text = subprocess.run(
        ["c++", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-x", "c++", str(include / "cuda.h")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
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
    """Each CUresult with what is said of it: the runtime says the same of its own error of that number."""
    runtime = ctypes.CDLL(str(of_the_runtime("libcudart.so.13")))
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    unknown = runtime.cudaGetErrorString(-1)
    lines = []
    for name, number in re.findall(r"^ +(CUDA_(?:SUCCESS|ERROR_\w+)) *= (\d+)", (include / "cuda.h").read_text(), re.M):
        text = runtime.cudaGetErrorString(int(number))
        words = name.removeprefix("CUDA_ERROR_").replace("_", " ").lower()  # of those that the runtime does not have
        lines.append(f'GCTX_SIM_ERROR({name}, "{words if text == unknown else text.decode()}")')
    return lines


def modelled() -> dict[str, tuple[str, int]]:
    text = (HERE / "functions.def").read_text()
    rows = re.findall(r"^GCTX_SIM_FUNCTION\((\w+), (\w+), (\d+)\)$", text, re.MULTILINE)
    return {symbol: (base, int(version)) for symbol, base, version in rows}


def reason(symbol: str) -> str:
    return next((why for pattern, why in REASONS if re.match(pattern, symbol)), OTHER)


def since(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def page(known: dict[str, tuple[str, int]], absent: dict[str, tuple[str, int]], header: str) -> str:
    groups: dict[str, list[str]] = defaultdict(list)
    bases = {base for base, _ in known.values()}
    for symbol, (base, _) in absent.items():
        groups["older variants of functions that are modelled" if base in bases else reason(symbol)].append(symbol)
    everything = len(known) + len(absent)
    lines = [
        "# The functions of the software driver",
        "",
        f"The header of CUDA {header} declares {everything} functions, old variants included, and variants",
        f"with a default stream per thread. The [software driver](software-driver.md) models {len(known)},",
        f"and the other {len(absent)} are exported too: each answers",
        "`CUDA_ERROR_NOT_SUPPORTED`, names itself once on standard error, and is counted in the ledger. It also",
        f"models {', '.join(f'`{symbol}`' for symbol in sorted(OF_OTHER_HEADERS))}, which `cuda.h` does not declare.",
        "Made by `cuda_gctx/sim/_cpp/abi/make_tables.py`.",
        "",
        "## Modelled",
        "",
        "| function | since |",
        "| --- | --- |",
        *(f"| `{symbol}` | {since(version)} |" for symbol, (_, version) in sorted(known.items())),
        "",
        "## Absent",
        "",
        "| why | functions |",
        "| --- | --- |",
    ]
    for why, symbols in sorted(groups.items(), key=lambda item: -len(item[1])):
        lines.append(f"| {why} ({len(symbols)}) | {', '.join(f'`{symbol}`' for symbol in sorted(symbols))} |")
    return "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    """The contents of the generated files."""
    include = of_the_runtime("cuda.h").parent
    functions, known = declared(include), modelled()
    wrong = {symbol: row for symbol, row in known.items() if functions.get(symbol, row) != row}
    extra = known.keys() - functions.keys()
    if wrong or extra != OF_OTHER_HEADERS:
        raise SystemExit(f"functions.def does not fit the header: {wrong or extra}")
    absent = {symbol: row for symbol, row in functions.items() if symbol not in known}
    listed = {symbol: row for symbol, row in known.items() if symbol in functions}
    suffixes = per_thread(include)
    match = re.search(r"#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text())
    assert match is not None
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
        DOCS / "driver-functions.md": page(listed, absent, since(int(match[1]))),
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
