"""Splits a GPU into uneven parts, gives each a context and a stream, and shows who has which SMs.

    python examples/demo.py

Runs on the GPU if there is one, else on a simulated one, and says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cuda_gctx import ContextOptions, CUDAError, Device, SMResource, SMResourceOptions, SplitError, system
from cuda_gctx.verify import verify

SIMULATED = "*** simulated: {} No GPU was used; nothing below was measured here. ***"

FENCE = """\
Why "remainder" is a context too: p99 of a short kernel beside matrix products is 1529 us on a stream of the highest
priority, 27.5 us in 16 SMs with the products fenced off in the others, 24.6 us alone in those 16 SMs
(measured on an NVIDIA H200, driver 580.159.04, 2026-11-20; see docs/partitions.md).
"""


def find_device() -> tuple[Device, str | None]:
    """The GPU, or a simulated one and the reason why it is not a real one."""
    try:
        return Device(0), None
    except CUDAError as error:
        if os.environ.get("CUDA_GCTX_DRIVER"):
            raise  # a driver that was asked for by name is not replaced by another
        # A driver that could not be opened is looked for again at the next use.
        os.environ["CUDA_GCTX_DRIVER"] = "sim:h200"
        return Device(0), str(error)


def print_table(rows: Sequence[Sequence[object]]) -> None:
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()


def show(dev: Device) -> None:
    whole = dev.resources.sm
    major, minor = system.driver_version
    grain = f"alignment {whole.coscheduled_alignment}, smallest group {whole.min_partition_size}"
    print(f"{dev.name}: {whole.sm_count} SMs, {grain}")
    print(f"CUDA driver {major}.{minor}: {system.driver_path}\n")

    # About 1/16 and 1/12 of the SMs, rounded up by the split, and everything else that is aligned.
    options = SMResourceOptions(count=[whole.sm_count // 16, whole.sm_count // 12, None])
    print(f"dev.resources.sm.split({options})\n")
    groups, remainder = whole.split(options)

    parts: dict[str, SMResource] = dict(zip(["comm", "decode", "prefill"], groups, strict=True))
    if remainder.sm_count:
        parts["remainder"] = remainder
    contexts = {name: dev.create_context(ContextOptions(resources=[sm], name=name)) for name, sm in parts.items()}
    streams = {name: ctx.create_stream() for name, ctx in contexts.items()}

    rows: list[tuple[object, ...]] = [
        ("part", "asked", "got", "stream.resources.sm.sm_count", "alignment", "strategy", "green")
    ]
    for name, sm in parts.items():
        seen = streams[name].resources.sm.sm_count
        green = "yes" if streams[name].context.is_green else "no"
        rows.append((name, sm.requested or "-", sm.sm_count, seen, sm.coscheduled_alignment, sm.strategy, green))
    print_table(rows)

    print("Who has which SMs, as a probe kernel saw it:\n")
    report = verify(contexts, covers_device=True)  # raises IsolationError if a part runs where it should not
    print(report, report.sm_map(), sep="\n\n", end="\n\n")

    print(FENCE)

    print("A request that does not fit says what would:\n")
    try:
        whole.split(SMResourceOptions(count=[whole.sm_count, whole.min_partition_size]), dry_run=True)
    except SplitError as error:
        print(f"SplitError: {error}\n")

    for name, ctx in contexts.items():
        ctx.close()
        # The stream keeps what it needs: it works until it is closed itself.
        streams[name].sync()
        streams[name].close()
    print("All contexts and streams are closed.")


def main() -> None:
    dev, why = find_device()
    simulated = "(simulated)" in dev.name
    if simulated:
        print(SIMULATED.format("a software driver answers."))
        print(f"Reason: {why or 'CUDA_GCTX_DRIVER asks for it'}\n")
    show(dev)
    if simulated:
        print(SIMULATED.format("a software driver answered.").replace("below", "above"))


if __name__ == "__main__":
    main()
