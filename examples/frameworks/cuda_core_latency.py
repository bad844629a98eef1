"""The latency of a short kernel of cuda.core next to bulk work: with the highest priority, and in a partition.

Each round launches one kernel of a few blocks, as a control loop would, while another kernel keeps every SM busy that
its stream can use. The times are those of the device.
"""

from __future__ import annotations

import statistics

from cuda.core import Device as CoreDevice
from cuda.core import LaunchConfig, Program, ProgramOptions, Stream, launch

from cuda_gctx import Device
from cuda_gctx import Stream as PartitionStream
from cuda_gctx.interop.cuda_core import core_stream

KERNEL = r"""
extern "C" __global__ void spin(unsigned long long ns) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - start < ns);
}
"""
ROUNDS = 200
US = 1_000


def main() -> None:
    core = CoreDevice(0)
    core.set_current()
    kernel = (
        Program(KERNEL, code_type="c++", options=ProgramOptions(arch=f"sm_{core.arch}"))
        .compile("cubin")
        .get_kernel("spin")
    )
    dev = Device(0)

    def latencies(critical: Stream, bulk: Stream) -> tuple[float, float]:
        """The median and the 99th percentile, in us."""
        timer = PartitionStream(critical)
        found = []
        for _ in range(ROUNDS):
            launch(bulk, LaunchConfig(grid=8 * dev.sm_count, block=1024), kernel, 200 * US)
            before = timer.record(options={"timing_enabled": True})
            launch(critical, LaunchConfig(grid=8, block=64), kernel, 10 * US)
            after = timer.record(options={"timing_enabled": True})
            after.sync()
            found.append(1000 * (after - before))
        dev.sync()
        return statistics.median(found), sorted(found)[int(0.99 * ROUNDS)]

    print(dev.name)
    _, highest = dev.priority_range
    with dev.create_stream({"priority": highest}) as one, dev.create_stream() as other:
        median, p99 = latencies(core_stream(one), core_stream(other))
        print(f"stream of the highest priority: median {median:.1f} us, p99 {p99:.1f} us")
    with dev.partition(critical=8, bulk=None) as parts:
        parts.verify()
        median, p99 = latencies(core_stream(parts.critical), core_stream(parts.bulk))
        print(f"partition of {parts.critical.sm_count} SMs: median {median:.1f} us, p99 {p99:.1f} us")


if __name__ == "__main__":
    main()
