"""Writes the linker's list of what libcuda_gctx.so exports: the C interface, and what the package's own modules import.

    python cmake/exports.py NM OUT OBJECTS_OF_CORE OBJECTS_OF_MODULES

The last two are lists of object files, separated by semicolons. The symbols for the modules have a version of their
own, which says that no other program may use them. A compiler that links the C++ library into each library gives each
one exceptions that no other can read: the modules then use those of the core.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Of the C++ library, where it is part of the core: what throws and catches, and the types that are thrown.
EXCEPTIONS = (
    *("__cxa_*", "__gxx_personality_*", "_Unwind_*", "_ZSt9terminatev", "_ZSt17current_exceptionv"),
    *("_ZSt17rethrow_exception*", "_ZN*St15__exception_ptr*", "_ZNKSt15__exception_ptr*"),
    *(
        "_ZT[IVS]St9exception",
        "_ZT[IVS]St9bad_alloc",
        "_ZT[IVS]St*_error",
        "_ZT[IVS]St*_argument",
        "_ZT[IVS]N10__cxxabiv1*",
    ),
)


def symbols(nm: str, kind: str, objects: str) -> set[str]:
    command = [nm, "--format=posix", kind, *objects.split(";")]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[0] for line in lines if line and not line.endswith(":")}


def listed(names: set[str]) -> str:
    return " ".join(f"{name};" for name in sorted(names))


def main(nm: str, out: str, core: str, modules: str) -> None:
    defined = symbols(nm, "--defined-only", core)
    public = {name for name in defined if name.startswith("gctx_")}
    internal = (defined & symbols(nm, "--undefined-only", modules)) - public
    text = (
        f"CUDA_GCTX_1 {{ global: {listed(public)} local: *; }};\n"
        f"CUDA_GCTX_INTERNAL {{ global: {listed(internal | {*EXCEPTIONS})} }};\n"
    )
    if not Path(out).exists() or Path(out).read_text() != text:  # what did not change links nothing again
        Path(out).write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
