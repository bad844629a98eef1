"""Runs FlashInfer's and torch's own tests of green contexts on the drop-ins of this package.

    python tests/hardware/upstream_tests.py --flashinfer FILE --torch FILE

FILE is tests/utils/test_green_ctx.py of FlashInfer; test/test_matmul_cuda.py of torch 2.11, or test/test_cuda.py of
newer versions, of which the tests with "green" in their names or those of their classes are run. They are not changed:
the drop-ins replace the modules that the files import. Needs pytest, a GPU, torch and whatever else the files import,
but not FlashInfer.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest


def put_in_flashinfers_place() -> None:
    package = ModuleType("flashinfer")
    package.green_ctx = import_module("cuda_gctx.compat.flashinfer")  # type: ignore[attr-defined]
    sys.modules["flashinfer"] = package
    sys.modules["flashinfer.green_ctx"] = package.green_ctx


def put_in_torchs_place() -> None:
    drop_in = import_module("cuda_gctx.compat.torch_green")
    # The classes alone: torch's tests ask the rest of the module what the driver has.
    for module in map(import_module, ("torch.cuda", "torch.cuda.green_contexts")):
        for name in ("GreenContext", "SMPartition"):
            if hasattr(module, name):
                setattr(module, name, getattr(drop_in, name))


def run(file: Path, *options: str) -> int:
    """Run the file without the other project's settings and conftest.py."""
    alone = ["-c", os.devnull, "--rootdir", str(file.parent), "--noconftest", "-p", "no:cacheprovider"]
    return int(pytest.main([str(file), "-v", "-rs", *alone, *options]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--flashinfer", type=Path, metavar="FILE", help="FlashInfer's tests/utils/test_green_ctx.py")
    parser.add_argument("--torch", type=Path, metavar="FILE", help="torch's test/test_matmul_cuda.py or test_cuda.py")
    arguments = parser.parse_args()
    if arguments.flashinfer is None and arguments.torch is None:
        parser.error("name at least one file")
    codes = []
    if arguments.flashinfer is not None:
        put_in_flashinfers_place()
        codes.append(run(arguments.flashinfer.resolve()))
    if arguments.torch is not None:
        put_in_torchs_place()
        codes.append(run(arguments.torch.resolve(), "-k", "green"))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
