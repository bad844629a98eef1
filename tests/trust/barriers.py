"""Which forms of the probe's kernel does synccheck report, and how often?

    python tests/trust/barriers.py [--times 30] [--limit 90] [--out FILE]
    python tests/trust/barriers.py --launch FORM

runs compute-sanitizer over the second command, TIMES times for each form. The forms are the probe's own text (of
probe.cpp), the one in which thread 0 alone waits and comes to the barrier after the lanes of its warp, and one without
any barrier. Each is launched as the proof of partitions launches the probe: with and without thread-block clusters of
every size, twice as many blocks as there are SMs. A line of JSON for each form says in how many runs synccheck reported
something, and where.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

from tests.trust.device_sanitizers import find

PROBE = Path(__file__).parents[2] / "cuda_gctx" / "_cpp" / "handles" / "probe.cpp"
THREADS, SPIN_NS, SIZES = 1024, 20_000, (1, 16, 12, 10, 8, 6, 4, 3, 2)
BYTES_OF_BLOCK, MULTIPROCESSORS, NON_PORTABLE, CLUSTER = 32, 16, 14, 4


def probe() -> str:
    return PROBE.read_text().split('probe_ptx = R"(')[1].split(')"')[0]


def one_waits() -> str:
    """Thread 0 leaves the lanes of its warp, and meets them at a barrier that allows for it."""
    text = probe().replace("setp.ge.u32 %p1, %r1, 32;", "setp.ne.u32 %p1, %r1, 0;")
    text = text.replace("  vote.sync.any.pred %p4, %p4, 0xffffffff;\n", "").replace("bar.sync 0;", "barrier.sync 0;")
    text = text.replace(
        "setp.lt.u32 %p5, %r4, %r3;\n  setp.eq.and.u32 %p5, %r1, 0, %p5;",
        "setp.ge.u32 %p5, %r4, %r3;\n  @%p5 bra done;",
    )
    return text.replace("@%p5 st.", "st.")


def all_wait() -> str:
    """Each warp stays for the whole time, so that none has to wait for another."""
    return probe().replace("  @%p1 bra done;\n", "").replace("  bar.sync 0;\n", "")


FORMS = {"probe": probe, "one_waits": one_waits, "all_wait": all_wait}


class Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


def launch(form: str) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        if code := getattr(cuda, name)(*arguments):
            raise RuntimeError(f"{name} answered {code}")

    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    out, sms = ctypes.c_uint64(), ctypes.c_int()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuDeviceGetAttribute", ctypes.byref(sms), MULTIPROCESSORS, 0)
    call("cuModuleLoadData", ctypes.byref(module), FORMS[form]().encode())
    call("cuModuleGetFunction", ctypes.byref(function), module, b"cuda_gctx_probe")
    call("cuFuncSetAttribute", function, NON_PORTABLE, 1)
    most = 2 * sms.value
    call("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(most * BYTES_OF_BLOCK))
    written = 0
    for size in SIZES:
        blocks = most // size * size
        call("cuMemsetD8_v2", out, ctypes.c_ubyte(0xFF), ctypes.c_size_t(most * BYTES_OF_BLOCK))
        values = out, ctypes.c_uint32(blocks), ctypes.c_uint64(SPIN_NS)
        pointers = (ctypes.c_void_p * 3)(*(ctypes.cast(ctypes.pointer(one), ctypes.c_void_p) for one in values))
        cluster = Attribute(CLUSTER, 0, (size, 1, 1))
        config = Config((blocks, 1, 1), (THREADS, 1, 1), 0, None, ctypes.pointer(cluster), size > 1)
        call("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)
        call("cuCtxSynchronize")
        seen = (ctypes.c_uint64 * (4 * blocks))()
        call("cuMemcpyDtoH_v2", seen, out, ctypes.c_size_t(blocks * BYTES_OF_BLOCK))
        for block in range(blocks):
            sm, begin, end, number = seen[4 * block : 4 * block + 4]
            if not (sm < sms.value and end - begin >= SPIN_NS and number == block):
                raise RuntimeError(
                    f"{form}: block {block} of {blocks} in clusters of {size} wrote {(sm, begin, end, number)}"
                )
            written += 1
    print(f"{form}: {written} blocks wrote what they saw", flush=True)


def check(form: str, times: int, end: float) -> dict[str, object]:
    sanitizer = find()
    if sanitizer is None:
        raise SystemExit(
            "no compute-sanitizer: pip install 'nvidia-cuda-sanitizer-api==13.0.*', for a driver of CUDA 13.0"
        )
    command = ["timeout", "-s", "KILL", "15", sanitizer, "--tool", "synccheck", "--show-backtrace", "no"]
    command += ["--print-limit", "10000", sys.executable, __file__, "--launch", form]
    runs, reported, failed = 0, 0, 0
    places, said = Counter[str](), ""
    while runs < times and time.monotonic() < end:
        done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
        found = re.findall(r"^=+ +(at .*|by thread .* in block .*)$", done.stdout, re.MULTILINE)
        failed += "wrote what they saw" not in done.stdout or "ERROR SUMMARY" not in done.stdout
        runs, reported = runs + 1, reported + bool(found)
        places.update(found)
        if (found or "wrote what they saw" not in done.stdout) and not said:
            said = (done.stdout + done.stderr)[:2000]
    return {
        "form": form,
        "runs": runs,
        "reported": reported,
        "failed": failed,
        "places": places.most_common(8),
        "said": said,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--limit", type=float, default=90, help="seconds of all")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--launch", choices=[*FORMS, "all"])
    options = parser.parse_args()
    if options.launch:
        for form in FORMS if options.launch == "all" else [options.launch]:
            launch(form)
        return 0
    rows, begin = [], time.monotonic()
    for number, form in enumerate(FORMS, 1):
        rows.append(check(form, options.times, begin + options.limit * number / len(FORMS)))
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 1 if rows[0]["reported"] or rows[0]["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
