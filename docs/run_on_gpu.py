"""Runs on a GPU what the tests on the software driver cannot: examples with frameworks, and such blocks of the pages.

    python docs/run_on_gpu.py [PAGE...]    the blocks of these pages, or of all pages and the examples
        --out FILE                         writes the outcomes and the outputs as JSON

Prints what each block and example printed, and exits with status 1 if one failed. An example or a block whose framework
or GPUs are missing is left out. Pages show outputs that were copied from here by hand.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from blocks import Block, on_a_gpu

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLE_LIMIT_S = 100
PAGE_LIMIT_S = 90
RAN = "ran"
LEFT_OUT = "left out"
# The examples of examples/frameworks, or of other folders, and the module without which they cannot run.
EXAMPLES = {
    "torch_partition": "torch",
    "torch_graphs_by_layout": "torch",
    "torch_green_context": "torch",
    "torch_library_sms": "torch",
    "flashinfer_split": "torch",
    "nccl_partition": "torch",
    "../comm_compute/one_gpu": "torch",
    "cupy_partition": "cupy",
    "numba_partition": "numba_cuda",
    "cuda_core_partition": "cuda.core",
    "cuda_core_latency": "cuda.core",
    "triton_persistent": "triton",
    "../comm_compute/several_gpus": "torch",
}
# Examples that run as a process for each of two GPUs.
OF_TWO_GPUS = ("../comm_compute/several_gpus",)
TORCHRUN = (
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
)

Row = dict[str, Any]


def is_installed(need: str) -> bool:
    """Returns whether a module is installed, and older than a version: `numba_cuda`, `numpy<2.5`."""
    module, _, limit = need.partition("<")
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
    if not found or not limit:
        return found
    version = importlib.metadata.version(module)
    return numbers_of(version) < numbers_of(limit)


def numbers_of(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def pages() -> list[Path]:
    """Returns the pages of the repository, README first."""
    docs = REPOSITORY / "docs"
    found = [*REPOSITORY.glob("*.md"), *docs.rglob("*.md")]
    return sorted(page for page in found if docs / "evidence" not in page.parents)


def name_of(page: Path) -> str:
    return os.path.relpath(page, REPOSITORY)


def row_of_example(name: str) -> Row:
    from cuda_gctx import Device

    row = {"page": f"examples/frameworks/{name}.py", "line": 1, "printed": ""}
    if not is_installed(EXAMPLES[name]):
        return row | {"outcome": f"{LEFT_OUT}: {EXAMPLES[name]} is not installed"}
    if name in OF_TWO_GPUS and Device.count() < 2:
        return row | {"outcome": f"{LEFT_OUT}: it needs two GPUs"}
    launcher = TORCHRUN if name in OF_TWO_GPUS else ()
    try:
        done = subprocess.run(
            [sys.executable, *launcher, str(REPOSITORY / row["page"])],
            capture_output=True,
            text=True,
            check=False,
            timeout=EXAMPLE_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return row | {"outcome": f"took more than {EXAMPLE_LIMIT_S} s"}
    outcome = RAN if done.returncode == 0 else done.stderr[-2000:]
    return row | {"outcome": outcome, "printed": done.stdout}


def run_page(page: Path, sender: Connection) -> None:
    """Runs the blocks of a page in one namespace, in a child. Sends a row for each that needs a GPU, or that fails."""
    text = page.read_text()
    names: Row = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for block in on_a_gpu(text):
            missing = [
                module for module in block.needs if not is_installed(module)
            ]
            if missing:
                words = f"{LEFT_OUT}: {', '.join(missing)} is not installed"
                outcome, printed = words, ""
            else:
                outcome, printed = outcome_of(block, names)
            # A given block may need a framework that is not installed.
            given = block.kind == "given" and "ImportError" in outcome
            if block.kind == "gpu" or (outcome != RAN and not given):
                row = {"page": name_of(page), "line": block.line}
                sender.send(row | {"outcome": outcome, "printed": printed})
    sender.close()


def outcome_of(block: Block, names: Row) -> tuple[str, str]:
    """Returns how the code of a block ended, and its output."""
    # Compilers of kernels read the source again, from a file.
    path = Path(f"line_{block.line}.py").absolute()
    path.write_text("\n" * block.line + block.text)
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(path.read_text(), path, "exec"), names)
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_available():
                # An error of a kernel belongs to its block.
                torch.cuda.synchronize()
    except Exception as error:
        kind = (
            "ImportError"
            if isinstance(error, ImportError)
            else type(error).__name__
        )
        lines = [
            f"{frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(path)
        ]
        where = lines[-1] if lines else "?"
        return f"{kind} in line {where}: {error}", out.getvalue()
    return RAN, out.getvalue()


def rows_of_page(page: Path, limit_s: float = PAGE_LIMIT_S) -> list[Row]:
    """Runs a page in a fork, which ends after its time limit."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=run_page, args=(page, sender))
    child.start()
    sender.close()
    rows: list[Row] = []
    problem = None
    try:
        while receiver.poll(limit_s):
            rows.append(receiver.recv())
        problem = f"took more than {limit_s:g} s"
    except EOFError:
        pass
    if problem:
        child.kill()
    child.join(10)
    child.kill()
    if not problem and child.exitcode:
        problem = f"the process ended with {child.exitcode}"
    if problem:
        row = {"page": name_of(page), "line": 0}
        rows.append(row | {"outcome": problem, "printed": ""})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pages", type=Path, nargs="*", metavar="PAGE")
    parser.add_argument("--out", type=Path, metavar="FILE")
    options = parser.parse_args()
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    # Imported once, for the forks; this process never uses the driver before them.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
    rows: list[Row] = []

    def add(found: list[Row]) -> None:
        for row in found:
            place = f"{row['page']}:{row['line']}"
            print(f"{place}: {row['outcome']}\n{row['printed']}", flush=True)
        rows.extend(found)

    for page in options.pages or pages():
        if any(block.kind == "gpu" for block in on_a_gpu(page.read_text())):
            add(rows_of_page(page.resolve()))
    if not options.pages:
        for name in EXAMPLES:
            add([row_of_example(name)])
    if options.out is not None:
        from cuda_gctx import Device
        from cuda_gctx.measure.machine import described
        from cuda_gctx.measure.results import write_result

        head = described(Device(0), "blocks of pages, examples", REPOSITORY)
        write_result({**head, "rows": rows}, options.out)
    failed = [
        row for row in rows if not row["outcome"].startswith((RAN, LEFT_OUT))
    ]
    sys.exit(f"{len(failed)} failed" if failed else None)


if __name__ == "__main__":
    main()
