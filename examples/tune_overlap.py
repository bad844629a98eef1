"""Asks the tuner how two pieces of work run together best, keeps the answer, and opens the plan.

The work here is a kernel that spins; yours would be torch, CuPy or launches of your own. On a machine without a GPU:
CUDA_GCTX_DRIVER=sim python examples/tune_overlap.py
"""

from __future__ import annotations

from cuda_gctx import Device, PartitionPool, Stream, tune

MS = 1_000_000


def bulk(stream: Stream) -> None:
    """Long blocks, more of them than fit on the device at once."""
    tune.spin(stream, blocks=2 * (2 * stream.device.sm_count - 32), spin_ns=MS)


def control(stream: Stream) -> None:
    """Short kernels one after the other, each of them small."""
    for _ in range(15):
        tune.spin(stream, blocks=32, spin_ns=MS // 10)
        tune.spin(stream, blocks=1, spin_ns=MS // 50)


def main() -> None:
    dev = Device(0)
    report = tune.overlap(bulk, control, device=dev, budget_s=20)
    print(report)
    if report.choice is None:
        raise SystemExit("undecided: measure longer, on a machine without other work")

    # A plan is a value: kept as JSON, it is used in the next process without measuring again.
    plan = tune.Plan.from_json(report.choice.to_json())
    with PartitionPool(dev) as pool, plan.open(pool) as streams:
        for name, stream in streams.items():
            print(f"\n{name}: {stream.resources.sm.sm_count} SMs", end="")
            bulk(stream) if name == "bulk" else control(stream)
        print()
        for stream in streams.values():
            stream.sync()


if __name__ == "__main__":
    main()
