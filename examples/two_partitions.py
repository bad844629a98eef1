"""A control loop next to other work: two partitions, streams on each, one waiting for the other, and the proof."""

from __future__ import annotations

from cuda_gctx import Device


def main() -> None:
    dev = Device(0)
    with dev.partition(control=16, rest=None) as parts:
        # What a kernel on these streams can use; pass the number to the library that launches it.
        control, rest = parts.control.stream, parts.rest.stream
        print(f"control has {control.resources.sm.sm_count} SMs, rest {rest.resources.sm.sm_count}")

        # Several streams share the SMs of their partition; the higher priority goes first.
        urgent, *_ = parts.control.stream_pool(2, priority=-1)
        print(f"priority of the urgent stream: {urgent.priority}")

        # A grid that is sized for the whole device would not fit at once, and a cooperative launch of it would fail.
        print(f"blocks of 256 threads that run at once in control: {parts.control.max_blocks(threads=256)}")

        # All later work of control, on any of its streams, waits for what rest was given so far.
        parts.control.wait(parts.rest)
        parts.control.context.sync()

        report = parts.verify()  # raises IsolationError if a kernel ran where it should not
        print(report)
        print(report.sm_map())
        print(parts)


if __name__ == "__main__":
    main()
