"""The table of functions and structs that have a CUcontext is complete, and the library does what it says."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..common import CUDA_INCLUDE, needs_cuda_header
from ..conftest import REPOSITORY
from .common import part_environment, run_in_part

pytestmark = [pytest.mark.sim_only, needs_cuda_header]

ROWS = dict(
    re.findall(
        r"^INTERPOSE_CONTEXT\((\w+), (\w+)\)$",
        (REPOSITORY / "cuda_gctx" / "interpose" / "contexts.def").read_text(),
        re.MULTILINE,
    )
)


def header() -> str:
    assert CUDA_INCLUDE is not None
    command = ["c++", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-x", "c++", str(CUDA_INCLUDE / "cuda.h")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def functions_with(kind: str, text: str) -> set[str]:
    found = re.findall(r"CUresult\s+(cu\w+)\s*\(([^()]*)\)", text)
    return {name for name, parameters in found if re.search(rf"\b{kind}\b", parameters)}


def test_every_function_and_struct_with_a_context_has_a_row() -> None:
    text = header()
    structs = re.findall(r"typedef struct \w*\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*(\w+)", text)
    expected = functions_with("CUcontext", text) | {name for body, name in structs if re.search(r"\bCUcontext\b", body)}
    assert expected == ROWS.keys()
    assert set(ROWS.values()) == {"translated", "forwarded", "refused"}


def exported() -> set[str]:
    environment = part_environment()
    library = Path(environment["LD_AUDIT"].split(":")[0]).parent / "libcuda.so.1"
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in lines.splitlines()}


def test_the_library_replaces_what_the_table_says() -> None:
    text, replaced = header(), exported()
    # Functions of streams are replaced for the sake of the stream.
    of_streams = functions_with("CUstream", text) | {"cuMemcpyPeer", "cuMemcpyPeer_ptds"}
    for name, verdict in ROWS.items():
        if name.startswith("cu") and name not in of_streams:
            assert (name in replaced) == (verdict != "forwarded"), name


def test_every_function_that_uses_a_stream_is_replaced_in_both_variants() -> None:
    text, replaced = header(), exported()
    declared = set(re.findall(r"CUresult\s+(cu\w+)\s*\(", text))
    variants = {name for name in declared if name.endswith(("_ptsz", "_ptds"))}
    # cuGraphInstantiateWithParams needs no stream of its own where the default stream is the NULL stream.
    assert (variants | {name[:-5] for name in variants}) - replaced == {"cuGraphInstantiateWithParams"}


# Prints the library of each function that the driver's look-up returns: any variant, that of the NULL stream, that of
# the thread's stream.
LOOK_UP = """
import ctypes, os, sys
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_char_p if name in ("file", "symbol") else ctypes.c_void_p)
                for name in ("file", "base", "symbol", "address")]
library = ctypes.CDLL("libcuda.so.1")
for name in sys.argv[1:]:
    for flags in range(3):
        address, status, info = ctypes.c_void_p(), ctypes.c_int(), Info()
        arguments = name.encode(), ctypes.byref(address), 13040, ctypes.c_uint64(flags), ctypes.byref(status)
        if library.cuGetProcAddress_v2(*arguments) == 0 and address:
            ctypes.CDLL(None).dladdr(address, ctypes.byref(info))
            print(name, flags, os.path.basename(os.path.realpath(info.file.decode())))
"""


def test_the_drivers_look_up_returns_the_library_for_every_function_of_it() -> None:
    names = {re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", name) for name in exported()}
    command = [sys.executable, "-c", LOOK_UP, *sorted(names)]
    done = run_in_part(command, part_environment(machine="h200@13.4"))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len({name for name, _, _ in lines}) > 100, done.stderr
    others = {(name, flags) for name, flags, library in lines if library != "libcuda_gctx_interpose.so"}
    # Its stream needs no replacement where the default stream is the NULL stream.
    assert others == {("cuGraphInstantiateWithParams", "0"), ("cuGraphInstantiateWithParams", "1")}


PROGRAM = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
print(hasattr(library, "cuInit"), hasattr(library, "softwareDriverLedger"))
address = ctypes.c_void_p()
library.cuGetProcAddress(b"cuGetProcAddress", ctypes.byref(address), 11040, ctypes.c_uint64(0))
own = ctypes.cast(library.cuGetProcAddress, ctypes.c_void_p).value
newer = ctypes.c_void_p()
library.cuGetProcAddress(b"cuGetProcAddress", ctypes.byref(newer), 12000, ctypes.c_uint64(0))
print(address.value == own, newer.value == ctypes.cast(library.cuGetProcAddress_v2, ctypes.c_void_p).value)
launch, threads = ctypes.c_void_p(), ctypes.c_void_p()
status = ctypes.c_int()
library.cuGetProcAddress_v2(b"cuLaunchKernel", ctypes.byref(launch), 13000, ctypes.c_uint64(1), ctypes.byref(status))
library.cuGetProcAddress_v2(b"cuLaunchKernel", ctypes.byref(threads), 13000, ctypes.c_uint64(2), ctypes.byref(status))
print(launch.value == ctypes.cast(library.cuLaunchKernel, ctypes.c_void_p).value)
print(threads.value == ctypes.cast(library.cuLaunchKernel_ptsz, ctypes.c_void_p).value)
"""


def test_functions_are_found_by_name_and_version_and_unknown_ones_are_the_drivers() -> None:
    done = run_in_part([sys.executable, "-c", PROGRAM], part_environment())
    assert done.stdout.split() == ["True"] * 6, done.stderr
    assert ctypes.sizeof(ctypes.c_void_p) == 8
