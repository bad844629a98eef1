"""Decode next to prefill: two partitions, streams on each, one waiting for the other, and the proof."""

from __future__ import annotations

from cuda_gctx import Device


def main() -> None:
    dev = Device(0)
    with dev.partition(decode=16, prefill=None) as parts:
        # What a kernel on these streams can use; pass the number to the library that launches it.
        decode, prefill = parts.decode.stream, parts.prefill.stream
        print(f"decode has {decode.resources.sm.sm_count} SMs, prefill {prefill.resources.sm.sm_count}")

        # Several streams share the SMs of their partition; the higher priority goes first.
        urgent, *_ = parts.decode.stream_pool(2, priority=-1)
        print(f"priority of the urgent stream: {urgent.priority}")

        # A grid that is sized for the whole device would not fit at once, and a cooperative launch of it would fail.
        print(f"blocks of 256 threads that run at once in decode: {parts.decode.max_blocks(threads=256)}")

        # All later work of decode, on any of its streams, waits for what prefill was given so far.
        parts.decode.wait(parts.prefill)
        parts.decode.context.sync()

        report = parts.verify()  # raises IsolationError if a kernel ran where it should not
        print(report)
        print(report.sm_map())
        print(parts)


if __name__ == "__main__":
    main()
