"""Kernels from their sources: compiled at run time for one chip, topology and type, and kept."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from cuda_gctx.comm._protocol import NODE_THREADS
from cuda_gctx.comm._structs import declarations

__all__ = ["Compiled", "compile_kernels", "source"]

FOLDER = Path(__file__).parent / "_kernels"
PRIMITIVES = "primitives.cuh"
# The files of kernels that are compiled together, and the kernels in them.
PLANS = ("plan.cuh",)
FLAT = ("packets.cuh", "one_exchange.cuh", "two_exchange.cuh", *PLANS, "torn.cuh")
WITHIN_NODES = ("two_exchange.cuh",)
BETWEEN_NODES = ("nodes.cuh",)
KERNELS = {
    "packets.cuh": (),
    "one_exchange.cuh": ("one_exchange",),
    "two_exchange.cuh": ("two_exchange",),
    "nodes.cuh": ("exchange_pieces",),
    "plan.cuh": ("begin_plan", "end_plan"),
    "torn.cuh": ("look_for_torn_packets",),
}
# Compiled apart, with the headers of NVSHMEM, and linked with its device library.
NVSHMEM = "nvshmem.cu"
DEVICE_LIBRARY = "libnvshmem_device.a"
REGISTERS_OF_AN_SM = 65536


def source(defines: dict[str, str], kernels: tuple[str, ...] = FLAT, primitives: str = PRIMITIVES) -> str:
    """One source of some files of kernels, behind defines and structs. primitives: the first file; empty for none."""
    head = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    first = (FOLDER / primitives).read_text() if primitives else ""
    files = [(FOLDER / name).read_text() for name in ("guard.cuh", *kernels)]
    texts = (first, declarations(defines, kernels), *files)
    return head + "\n".join(text.replace("#pragma once\n", "") for text in texts)


@dataclass(frozen=True)
class Report:
    """What the assembler reports about a kernel."""

    registers: int
    spill_bytes: int
    stack_bytes: int


@dataclass(frozen=True)
class Compiled:
    """The kernels of a topology, an operation, a type and a chip."""

    code: Any
    log: str

    def report(self, kernel: str) -> Report:
        """From the compiler's log, which describes each kernel that it assembled."""
        part = re.search(
            rf"Function properties for {kernel}\n[^\n]*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
            r"(\d+) bytes spill loads\n[^\n]*?Used (\d+) registers",
            self.log,
        )
        if part is None:
            raise RuntimeError(f"the compiler's report does not mention {kernel}:\n{self.log}")
        stack, stores, loads, registers = map(int, part.groups())
        return Report(registers, stores + loads, stack)


# Ranks that are threads ask for the same kernels at the same time: one of them compiles.
_compiling = threading.Lock()


@cache
def _compiled(text: str, arch: str, includes: tuple[str, ...] = (), *, is_linked: bool = False) -> Compiled:
    core: Any = import_module("cuda.core")
    log = StringIO()
    # 13.0 of cuda.core knows its options under these names; the report of the assembler comes with the log.
    options = core.ProgramOptions(
        std="c++17",
        arch=arch,
        ptxas_options=["-v", "-warn-spills"],
        relocatable_device_code=is_linked,
        include_path=list(includes) or None,
        # Constructors of NVSHMEM's headers are not marked as device functions.
        device_as_default_execution_space=bool(includes),
        # A kernel cannot call what needs more than it has itself.
        max_register_count=REGISTERS_OF_AN_SM // NODE_THREADS if is_linked else None,
    )
    program = core.Program(text, "c++", options)
    try:
        code = program.compile("cubin", logs=log)
    finally:
        program.close()
    return Compiled(code, log.getvalue())


@cache
def _with_nvshmem(text: str, arch: str) -> Compiled:
    core: Any = import_module("cuda.core")
    includes, library = _nvshmem()
    kernels = _compiled(text, arch, is_linked=True)
    calls = _compiled((FOLDER / NVSHMEM).read_text(), arch, includes, is_linked=True)
    parts = kernels.code, calls.code, core.ObjectCode.from_library(library)
    linker = core.Linker(*parts, options=core.LinkerOptions(arch=arch))
    try:
        return Compiled(linker.link("cubin"), kernels.log)
    finally:
        linker.close()


def _nvshmem() -> tuple[tuple[str, ...], str]:
    """The folders of the headers that NVSHMEM's device calls need, and its device library.

    RuntimeError if one of them is not installed.
    """
    pathfinder: Any = import_module("cuda.pathfinder")
    folders = {name: pathfinder.find_nvidia_header_directory(name) for name in ("nvshmem", "cudart", "cccl")}
    missing = [name for name, folder in folders.items() if folder is None]
    if missing:
        raise RuntimeError(
            f"NVSHMEM's device calls need the headers of {' and '.join(missing)} "
            "(pip install nvshmem4py-cu13 nvidia-cuda-runtime nvidia-cuda-cccl)"
        )
    library = Path(folders["nvshmem"]).parent / "lib" / DEVICE_LIBRARY
    if not library.exists():
        raise RuntimeError(f"NVSHMEM's device calls need {library}, which is missing")
    return tuple(folders.values()), str(library)


def compile_kernels(
    defines: dict[str, str],
    capability: tuple[int, int],
    kernels: tuple[str, ...] = FLAT,
    *,
    with_nvshmem: bool = False,
) -> Compiled:
    """The kernels of some files for a chip of a compute capability.

    Takes part of a second the first time, then nothing. with_nvshmem: linked with the device calls of NVSHMEM, whose
    headers take seconds, once for a chip.
    """
    with _compiling:
        text, arch = source(defines, kernels), f"sm_{capability[0]}{capability[1]}"
        return _with_nvshmem(text, arch) if with_nvshmem else _compiled(text, arch)
