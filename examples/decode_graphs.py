"""Decode in CUDA graphs next to a prefill: a graph for each batch size and partition, and a timeline of both.

The layout follows the load. A graph runs on the SMs on which it was captured, so each layout has its own graphs. The
kernels here only spin; frameworks/torch_decode_graphs.py does the same with torch.
"""

from __future__ import annotations

from cuda_gctx import Device, GraphSet, Layout, Partition, PartitionPool, Timeline, tune

MS = 1_000_000
BATCHES = (1, 8)
QUIET = Layout(decode=16, prefill=None)
BUSY = Layout(decode=32, prefill=None)


def decode(part: Partition, batch: int) -> None:
    """One step: some kernels, whose launches a graph saves."""
    for _ in range(4):
        tune.spin(part.stream, blocks=part.sm_count, spin_ns=MS // 100 * batch)


def main() -> None:
    dev = Device(0)
    with PartitionPool(dev) as pool, GraphSet(pool) as graphs:
        for layout in (QUIET, BUSY):  # contexts are not made during a capture: all layouts first
            pool.prepare(layout)
        for layout in (QUIET, BUSY):
            pool.switch(layout)
            for batch in BATCHES:
                graphs.capture("decode", batch, lambda part, batch=batch: decode(part, batch))
        print(f"{dev.name}: {len(graphs)} graphs")

        for layout, batch in ((QUIET, 1), (BUSY, 8), (QUIET, 1)):
            parts = pool.switch(layout)
            timeline = Timeline(parts)
            with timeline.span(parts.prefill.stream, "prefill"):
                tune.spin(parts.prefill.stream, blocks=parts.prefill.sm_count, spin_ns=20 * MS)
            for step in range(4):
                with timeline.span(parts.decode.stream, f"step {step}"):
                    graphs.replay("decode", batch)  # that of the current layout
            prefill, *steps = sorted(timeline.read().spans, key=lambda span: span.track == "decode")
            during = sum(prefill.start_ns <= step.start_ns and step.end_ns <= prefill.end_ns for step in steps)
            print(
                f"batch {batch} on {parts.decode.sm_count} SMs: {during} of {len(steps)} steps ran during the prefill"
            )

        try:
            graphs.replay(pool.current.prefill, 1)
        except ValueError as error:
            print(error)


if __name__ == "__main__":
    main()
