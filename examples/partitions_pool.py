"""A serving loop that switches between prepared layouts, each behind the work of the one before on the same SMs."""

from __future__ import annotations

import timeit

from cuda_gctx import Device, Layout, PartitionPool, system, tune

QUIET = Layout(control=8, rest=None)
BUSY = Layout(control=32, rest=None)


def main() -> None:
    dev = Device(0)
    print(dev.name)
    with PartitionPool(dev) as pool:
        for layout in (QUIET, BUSY):
            print(f"{layout}: {pool.prepare(layout)!r}")

        for waiting_requests in (0, 90, 3, 70):
            # Ordered on the device: control waits for the bulk work that still has its SMs. The host goes on.
            parts = pool.switch(BUSY if waiting_requests > 50 else QUIET)
            tune.spin(parts.rest.stream, blocks=parts.rest.sm_count, spin_ns=1_000_000)
            tune.spin(parts.control.stream, blocks=parts.control.sm_count, spin_ns=10_000)
            print(f"{waiting_requests:2} requests wait: control on {parts.control.sm_count} SMs")
        dev.sync()

        both = min(timeit.repeat(lambda: (pool.switch(QUIET), pool.switch(BUSY)), number=1000, repeat=5)) / 1000
        print(f"a switch takes {both / 2 * 1e6:.1f} us of the host")

    # The contexts wait for their next use, because the driver does not give their memory back.
    use = system.memory()[dev.device_id]
    print(f"{use.idle} contexts are idle, {use.open + use.lingering} in use")
    assert use.open + use.lingering == 0


if __name__ == "__main__":
    main()
