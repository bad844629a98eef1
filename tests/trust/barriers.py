"""Which forms of the probe's kernel does synccheck report, and how often?

    python tests/trust/barriers.py [--times 12] [--limit 75] [--out FILE] [FORM...]

runs compute-sanitizer over a program that spins in partitions and proves them, with copies of the installed package
whose core holds another text of the kernel: the one of today, in which all warps wait, one in which the others wait
for the first warp at a barrier, one in which they end at once, and one in which thread 0 alone waits and comes to the
barrier after the lanes of its warp. The forms take turns, TIMES runs each, or as many as fit in LIMIT seconds. A line
of JSON for each form says in how many runs, and in how many proofs of how many, synccheck reported something, and
where; and how many blocks an SM had at once out of four times as many as fit, without the tool: more than fit would
mean that a block gives up its place before it ends. The exit code is 1 if synccheck reported the text of today, or a
run of it did not end well.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

from tests.trust.device_sanitizers import NO_SANITIZER, find

BEGIN, END = b"\n.version 7.0\n.target sm_70\n", b"\0"
LIBRARY = "libcuda_gctx.so"
PROOFS, DONE = 10, "all proved"
RUN_S = 25


def today(text: str) -> str:
    return text


def at_a_barrier(text: str) -> str:
    """The first warp waits, and the others for it."""
    text = replaced(text, "  mov.u32 %r2, 0;\n", "  mov.u32 %r2, 0;\n  setp.ge.u32 %p4, %r1, 32;\n  @%p4 bra done;\n")
    return replaced(text, "  ret;\n", "done:\n  bar.sync 0;\n  ret;\n")


def others_leave(text: str) -> str:
    """The first warp alone holds the block's place."""
    return replaced(at_a_barrier(text), "  bar.sync 0;\n", "")


def one_waits(text: str) -> str:
    """Thread 0 leaves the lanes of its warp, and meets them at a barrier that allows for it."""
    text = replaced(at_a_barrier(text), "setp.ge.u32 %p4, %r1, 32;", "setp.ne.u32 %p4, %r1, 0;")
    text = replaced(text, "  vote.sync.any.pred %p3, %p3, 0xffffffff;\n", "")
    text = replaced(text, "bar.sync 0;", "barrier.sync 0;")
    text = replaced(
        text,
        "setp.lt.u32 %p4, %r4, %r3;\n  setp.eq.and.u32 %p4, %r1, 0, %p4;",
        "setp.ge.u32 %p4, %r4, %r3;\n  @%p4 bra done;",
    )
    return replaced(text, "@%p4 st.", "st.")


FORMS = {"today": today, "at_a_barrier": at_a_barrier, "others_leave": others_leave, "one_waits": one_waits}


def replaced(text: str, old: str, new: str) -> str:
    if old not in text:
        raise ValueError(f"the probe has changed: it has no {old!r}")
    return text.replace(old, new)


def changed(library: bytes, form: str) -> bytes:
    """A core whose probe has another text, in the room of its own: without the blanks before its lines."""
    begin = library.index(BEGIN)
    own = library[begin : library.index(END, begin)]
    text = re.sub(r"^ +", "", FORMS[form](own.decode()), flags=re.MULTILINE).encode()
    if len(text) > len(own):
        raise ValueError(f"the form {form} has no room in the core")
    return library[:begin] + text.ljust(len(own), b"\n") + library[begin + len(own) :]


def copied(form: str, package: Path, folder: Path) -> None:
    copy = shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    library = copy / LIBRARY
    library.write_bytes(changed(library.read_bytes(), form))


def most_at_once(device: Any) -> int:
    """How many blocks one SM had at once, of four times as many as there is room for."""
    from cuda_gctx._core.extension import probe_blocks_per_sm, run_probe

    with device.create_stream() as stream:
        blocks = 4 * device.sm_count * probe_blocks_per_sm(device.context)
        [seen] = run_probe([stream], [blocks], 200_000, 5_000_000_000)
    assert len(seen) == blocks
    events = sorted([(sm, end, -1) for sm, _, end in seen] + [(sm, begin, 1) for sm, begin, _ in seen])
    return max(accumulate(change for _, _, change in events))  # each SM begins and ends with none


def prove() -> None:
    """What runs under the tool."""
    import cuda_gctx
    from cuda_gctx import Device
    from cuda_gctx.tune import spin

    library = str(Path(cuda_gctx.__file__).with_name(LIBRARY))
    if library not in Path("/proc/self/maps").read_text():
        raise RuntimeError(f"{library} is not the core in use")

    dev = Device(0)
    print(f"AT ONCE {most_at_once(dev)}", flush=True)
    with dev.partition(a=16, b=32) as parts:
        for number in range(PROOFS):
            print(f"PROOF {number}", flush=True)
            for part in parts:
                spin(part.stream, 2, 10_000)
                part.sync()
            parts.verify()
    print(DONE, flush=True)


def run(folder: Path, *tool: str) -> str:
    """What a process says that uses the package of a folder."""
    done = subprocess.run(
        ["timeout", "-s", "KILL", str(RUN_S), *tool, sys.executable, __file__, "--prove"],
        capture_output=True,
        text=True,
        check=False,
        errors="replace",
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])},
    )
    return done.stdout + done.stderr


def check(sanitizer: str, folder: Path) -> tuple[int, list[str], str]:
    """How many proofs had a report, the warp of each reported thread, and all that was said."""
    options = ("--tool", "synccheck", "--show-backtrace", "no", "--print-limit", "10000")
    said = run(folder, sanitizer, *options)
    proofs = said.split("PROOF ")  # the first is what comes before them
    threads = [re.findall(r"^=+ +by thread \((\d+),.*\) in block \((\d+),", proof, re.MULTILINE) for proof in proofs]
    warps = [f"warp {int(thread) // 32} of block {block}" for proof in threads for thread, block in proof]
    return sum(map(bool, threads)), warps, said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=12)
    parser.add_argument("--limit", type=float, default=75, help="seconds of all")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--prove", action="store_true", help="in this process, without a tool")
    parser.add_argument("forms", nargs="*", default=list(FORMS))
    options = parser.parse_args()
    if options.prove:
        # Not those of the repository: the tool runs what PYTHONPATH names.
        sys.path.append(sys.path.pop(0))
        prove()
        return 0
    sanitizer, end = find(), time.monotonic() + options.limit
    if sanitizer is None:
        raise SystemExit(NO_SANITIZER)
    sys.path.append(sys.path.pop(0))
    import cuda_gctx

    package = Path(cuda_gctx.__file__).parent
    rows: dict[str, dict[str, Any]] = {
        form: {"form": form, "runs": 0, "runs reported": 0, "proofs": 0, "proofs reported": 0, "failed": 0}
        for form in options.forms
    }
    warps_of = {form: Counter[str]() for form in rows}
    with tempfile.TemporaryDirectory() as folder:
        for form, row in rows.items():
            copied(form, package, Path(folder) / form)
            said = run(Path(folder) / form)
            row["blocks on an SM at once"] = int(found[1]) if (found := re.search(r"AT ONCE (\d+)", said)) else said
            row["proved"] = DONE in said
        for _ in range(options.times):
            for form, row in rows.items():
                if time.monotonic() > end:
                    break
                reported, warps, said = check(sanitizer, Path(folder) / form)
                ended = DONE in said and "ERROR SUMMARY" in said
                row["runs"] += 1
                row["runs reported"] += reported > 0
                row["proofs"] += said.count("PROOF ")
                row["proofs reported"] += reported
                row["failed"] += not ended
                warps_of[form].update(warps)
                if (reported or not ended) and "said" not in row:
                    row["said"] = said[:2000] + said[-1000:] * (len(said) > 3000)
    lines = [json.dumps(row | {"reports": warps_of[form].most_common()}) + "\n" for form, row in rows.items()]
    print("".join(lines), end="")
    if options.out:
        options.out.write_text("".join(lines))
    first = rows[options.forms[0]]
    return 1 if first["runs reported"] or first["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
