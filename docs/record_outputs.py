"""Records what the examples and the blocks of the pages print on a GPU, and writes it into the pages.

    python docs/record_outputs.py --record FILE    run the examples that need a GPU, and write their outputs to FILE
    python docs/record_outputs.py --pages FILE     the same with the blocks of pages
        --only PAGE                                of one page; the others keep theirs if this card gave them
    python docs/record_outputs.py                  write docs/outputs.json and docs/page-outputs.json into the pages
    python docs/record_outputs.py --check          exit with status 1 if a page is out of date

An example or a block whose framework or GPUs are missing is reported and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from blocks import RECORDED, Block, blocks_of, given_on, on_a_gpu

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "appendix" / "examples.md"
OUTPUTS = REPOSITORY / "docs" / "outputs.json"
PAGE_OUTPUTS = REPOSITORY / "docs" / "page-outputs.json"
SECTION = "(?<=<!-- {0}: begin -->\n).*(?=<!-- {0}: end -->)"
LIMIT_S = 100
PAGE_LIMIT_S = 90
RAN = "ran"
# The examples, and the module without which they cannot run.
EXAMPLES = {
    "torch_partition": "torch",
    "torch_decode_graphs": "torch",
    "torch_green_context": "torch",
    "torch_library_sms": "torch",
    "flashinfer_split": "torch",
    "nccl_partition": "torch",
    "local_world_tensor_parallel": "torch",
    "cupy_partition": "cupy",
    "numba_partition": "numba_cuda",
    "cuda_core_partition": "cuda.core",
    "cuda_core_latency": "cuda.core",
    "triton_persistent": "triton",
    "torchrun_tensor_parallel": "torch",
}
# Those that run as a process for each of two GPUs.
OF_TWO_GPUS = ("torchrun_tensor_parallel",)
TORCHRUN = (
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
)

Row = dict[str, Any]


def is_installed(need: str) -> bool:
    """Whether a module can be imported, and is older than a version: `numba_cuda`, `numpy<2.5`."""
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
    """The pages of the repository, README first."""
    return [
        *sorted(REPOSITORY.glob("*.md")),
        *sorted((REPOSITORY / "docs").rglob("*.md")),
    ]


def pages_of(only: Path | None) -> list[Path]:
    return pages() if only is None else [only.resolve()]


def name_of(page: Path) -> str:
    return os.path.relpath(page, REPOSITORY)


def digest(text: str, block: Block) -> str:
    """What a block of a page is known by: its text, and that of what is given on the page."""
    sources = [block.text, *(given.text for given in given_on(text))]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()[:12]


def described_by_driver() -> Row:
    from cuda_gctx import Device
    from cuda_gctx.measure.machine import described

    return described(Device(0), "examples", REPOSITORY)


def kept_of(recorded: Row, again: dict[str, str]) -> Row:
    """The outputs that were not recorded again, each with where and when it was printed."""
    origin = {key: recorded[key] for key in ("card", "driver", "cuda", "date")}
    known = {
        name: {**origin, "printed": printed}
        for name, printed in recorded["outputs"].items()
    }
    known |= recorded.get("kept", {})
    return {name: row for name, row in known.items() if name not in again}


def record(path: Path) -> None:
    from cuda_gctx import Device

    recorded = json.loads(OUTPUTS.read_text())
    outputs: dict[str, str] = {}
    for name, module in EXAMPLES.items():
        if not is_installed(module):
            print(f"{name}: left out, {module} is not installed", flush=True)
            continue
        if name in OF_TWO_GPUS and Device.count() < 2:
            print(f"{name}: left out, it needs two GPUs", flush=True)
            continue
        launcher = TORCHRUN if name in OF_TWO_GPUS else ()
        program = REPOSITORY / "examples" / "frameworks" / f"{name}.py"
        environment = {**os.environ, "NCCL_NVLS_ENABLE": "0"}
        try:
            done = subprocess.run(
                [sys.executable, *launcher, str(program)],
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT_S,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            print(f"{name}: left out, it took more than {LIMIT_S} s", flush=True)
            continue
        print(
            f"{name}: exit status {done.returncode}\n{done.stdout}{done.stderr[-2000:]}",
            flush=True,
        )
        if done.returncode == 0:
            outputs[name] = done.stdout
        result = {
            **described_by_driver(),
            "outputs": outputs,
            "kept": kept_of(recorded, outputs),
        }
        path.write_text(json.dumps(result, indent=2) + "\n")


def run_page(page: Path, sender: Connection) -> None:
    """The child: runs the blocks of a page in one namespace; sends a row for each that needs a GPU, or that fails."""
    text = page.read_text()
    names: Row = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, block in enumerate(on_a_gpu(text)):
            begin = time.monotonic()
            missing = [
                module for module in block.needs if not is_installed(module)
            ]
            if missing:
                outcome, printed = (
                    f"left out: {', '.join(missing)} is not installed",
                    "",
                )
            else:
                outcome, printed = outcome_of(block, names)
            if block.kind == "gpu" or (
                outcome != RAN
                and not (block.kind == "given" and "ImportError" in outcome)
            ):
                # A block is known by its text and that of what is given.
                row = {
                    "page": name_of(page),
                    "block": number,
                    "of": digest(text, block),
                    "outcome": outcome,
                    "date": time.strftime("%Y-%m-%d"),
                }
                sender.send(
                    {
                        **row,
                        "seconds": round(time.monotonic() - begin, 2),
                        "printed": printed,
                    }
                )
    sender.close()


def outcome_of(block: Block, names: Row) -> tuple[str, str]:
    """How the code of a block ended, and what it printed."""
    # In a file, because compilers of kernels read the source again.
    path = Path(f"line_{block.line}.py").absolute()
    path.write_text("\n" * block.line + block.text)
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(path.read_text(), path, "exec"), names)
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_available():
                # So that an error of a kernel belongs to its block.
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
        return (
            f"{kind} in line {lines[-1] if lines else '?'}: {error}",
            out.getvalue(),
        )
    return RAN, out.getvalue()


def in_a_fork(
    work: Callable[..., None], *arguments: Any, limit_s: float
) -> tuple[list[Any], str | None]:
    """What a child sends, and how it failed. It is killed at the end of its time, whatever it waits for."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=work, args=(*arguments, sender))
    child.start()
    sender.close()
    end = time.monotonic() + limit_s
    received, problem = [], None
    try:
        while True:
            if not receiver.poll(max(0.0, end - time.monotonic())):
                problem = f"took more than {limit_s:g} s"
                break
            received.append(receiver.recv())
    except EOFError:
        pass
    if problem:
        child.kill()
    child.join(10)
    child.kill()
    if not problem and child.exitcode:
        problem = f"the process ended with {child.exitcode}"
    return received, problem


def send_description(sender: Connection) -> None:
    sender.send(described_by_driver())
    sender.close()


def rows_of_others(machine: Row, pages: list[Path]) -> list[Row]:
    """The recorded rows of other pages, if such a card with this driver gave them."""
    known: Row = (
        json.loads(PAGE_OUTPUTS.read_text()) if PAGE_OUTPUTS.exists() else {}
    )
    if any(known.get(key) != machine[key] for key in ("card", "driver")):
        return []
    again = [name_of(page) for page in pages]
    return [row for row in known["rows"] if row["page"] not in again]


def record_pages(path: Path, pages: list[Path]) -> bool:
    """Whether all blocks ran whose modules are installed."""
    from cuda_gctx.measure.results import write_result

    os.environ["NCCL_NVLS_ENABLE"] = "0"
    # Imported once; the children are forks of this process, which never uses the driver itself.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
    (machine,), _ = in_a_fork(send_description, limit_s=PAGE_LIMIT_S)
    rows = rows_of_others(machine, pages)
    failed = False
    for page in pages:
        if not any(block.kind == "gpu" for block in on_a_gpu(page.read_text())):
            continue
        found, problem = in_a_fork(run_page, page, limit_s=PAGE_LIMIT_S)
        for row in found:
            print(
                f"{row['page']} {row['block']}: {row['outcome']}, {row['seconds']} s\n{row['printed']}",
                flush=True,
            )
        if problem:
            print(f"{name_of(page)}: {problem}", flush=True)
        failed |= problem is not None or any(
            not row["outcome"].startswith((RAN, "left out")) for row in found
        )
        rows = sorted(
            [*rows, *found], key=lambda row: (row["page"], row["block"])
        )
        write_result({**machine, "_what": "blocks of pages", "rows": rows}, path)
    return not failed


def section(result: Row) -> str:
    lines = [
        f"The outputs on an {where_and_when(result)}, as `docs/record_outputs.py` recorded them:",
        "",
    ]
    for name, output in result["outputs"].items():
        lines += [f"### {name}.py", "", *fenced(output)]
    for name, row in result["kept"].items():
        lines += [
            f"### {name}.py",
            "",
            f"Recorded on an {where_and_when(row)}:",
            "",
            *fenced(row["printed"]),
        ]
    return "\n".join(lines)


def where_and_when(result: Row) -> str:
    return f"{result['card']}, driver {result['driver']}, CUDA {result['cuda']}, {result['date']}"


def fenced(output: str) -> list[str]:
    return ["```text", *output.rstrip().splitlines(), "```", ""]


def blocks_section(result: Row | None) -> str:
    """A row for each page: how many of its blocks need a GPU, and how many ran there as they stand."""
    known = {row["of"]: row for row in result["rows"]} if result else {}
    lines = [
        "| page | blocks that need a GPU | what is known | date |",
        "| --- | --- | --- | --- |",
    ]
    for page in pages():
        text = page.read_text()
        rows = [
            known.get(digest(text, block), {"outcome": "not run as written"})
            for block in on_a_gpu(text)
            if block.kind == "gpu"
        ]
        states = Counter(row["outcome"].partition(":")[0] for row in rows)
        dates = ", ".join(sorted({row["date"] for row in rows if "date" in row}))
        if states:
            words = ", ".join(
                f"{number} {state}" for state, number in states.items()
            )
            lines.append(
                f"| `{name_of(page)}` | {states.total()} | {words} | {dates} |"
            )
    if result is None:
        return "\n".join(
            ["The blocks of the pages that need a GPU:", "", *lines, ""]
        )
    card = f"{result['card']}, driver {result['driver']}, CUDA {result['cuda']}"
    return "\n".join(
        [
            f"The blocks of the pages that need a GPU, on an {card}:",
            "",
            *lines,
            "",
        ]
    )


def with_recorded(text: str, name: str, result: Row | None) -> str:
    """A page with what its blocks printed, where it shows that. What it shows has to be of these very blocks."""
    known = (
        {row["of"]: row for row in result["rows"] if row["outcome"] == RAN}
        if result
        else {}
    )
    lines = text.splitlines(keepends=True)
    for block in reversed(blocks_of(text)):
        shown = block.below
        row = known.get(digest(text, block))
        if shown is not None and shown.comment == RECORDED:
            if row is None:
                sys.exit(
                    f"{name}:{shown.line}: the block above has not run on a GPU as it stands: leave its output out"
                )
            first = shown.line  # the line after the fence, from 0
            lines[first : first + len(shown.lines)] = [
                f"{line}\n" for line in row["printed"].rstrip().splitlines()
            ]
    return "".join(lines)


def written() -> dict[Path, str]:
    """Each page that shows recorded outputs, as it is to be."""
    result = (
        json.loads(PAGE_OUTPUTS.read_text()) if PAGE_OUTPUTS.exists() else None
    )
    found = {
        page: with_recorded(page.read_text(), name_of(page), result)
        for page in pages()
    }
    sections = {
        "outputs on a GPU": section(json.loads(OUTPUTS.read_text())),
        "blocks on a GPU": blocks_section(result),
    }
    for name, words in sections.items():
        found[PAGE] = re.sub(
            SECTION.format(name),
            lambda _, words=words: f"\n{words}\n",
            found[PAGE],
            flags=re.DOTALL,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--pages", type=Path, metavar="FILE")
    parser.add_argument("--only", type=Path, metavar="PAGE")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.record is not None:
        record(options.record)
        return
    if options.pages is not None:
        sys.exit(
            None
            if record_pages(options.pages, pages_of(options.only))
            else "a block of a page failed"
        )
    changed = {
        page: text for page, text in written().items() if page.read_text() != text
    }
    if options.check and changed:
        names = ", ".join(map(name_of, changed))
        sys.exit(f"out of date: {names}; run python docs/record_outputs.py")
    for page, text in changed.items():
        page.write_text(text)


if __name__ == "__main__":
    main()
