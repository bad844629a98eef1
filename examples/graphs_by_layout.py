"""Control steps in CUDA graphs next to bulk work: a graph for each batch size and partition, and a timeline of both.

The layout follows the load. A graph runs on the SMs on which it was captured, so each layout has its own graphs. The
kernels here only spin; frameworks/torch_graphs_by_layout.py does the same with torch.
"""

from __future__ import annotations

from cuda_gctx import Device, GraphSet, Layout, Partition, PartitionPool, Timeline, tune

MS = 1_000_000
BATCHES = (1, 8)
QUIET = Layout(control=16, rest=None)
BUSY = Layout(control=32, rest=None)


def control_step(part: Partition, batch: int) -> None:
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
                graphs.capture("control", batch, lambda part, batch=batch: control_step(part, batch))
        print(f"{dev.name}: {len(graphs)} graphs")

        for layout, batch in ((QUIET, 1), (BUSY, 8), (QUIET, 1)):
            parts = pool.switch(layout)
            timeline = Timeline(parts)
            with timeline.span(parts.rest.stream, "bulk"):
                tune.spin(parts.rest.stream, blocks=parts.rest.sm_count, spin_ns=20 * MS)
            for step in range(4):
                with timeline.span(parts.control.stream, f"step {step}"):
                    graphs.replay("control", batch)  # that of the current layout
            bulk, *steps = sorted(timeline.read().spans, key=lambda span: span.track == "control")
            during = sum(bulk.start_ns <= step.start_ns and step.end_ns <= bulk.end_ns for step in steps)
            print(
                f"batch {batch} on {parts.control.sm_count} SMs: {during} of {len(steps)} steps ran next to bulk work"
            )

        try:
            graphs.replay(pool.current.rest, 1)
        except ValueError as error:
            print(error)


if __name__ == "__main__":
    main()
