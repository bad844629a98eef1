"""Switching between prepared layouts: the first use of each builds it, every later one is a look-up."""

from __future__ import annotations

import timeit

from cuda_gctx import Device, Layout, PartitionPool, system

QUIET = Layout(decode=8, prefill=None)
BUSY = Layout(decode=32, prefill=None)


def main() -> None:
    dev = Device(0)
    print(dev.name)
    with PartitionPool(dev) as pool:
        for layout in (QUIET, BUSY):
            print(f"{layout}: {pool.get(layout)!r}")

        for waiting_requests in (0, 90, 3, 70):
            parts = pool.get(BUSY if waiting_requests > 50 else QUIET)
            stream = parts.decode.stream
            print(f"{waiting_requests:2} requests wait: decode on {stream.resources.sm.sm_count} SMs")

        switch = min(timeit.repeat(lambda: pool.get(QUIET), number=10_000, repeat=5)) / 10_000
        print(f"a switch takes {'less than a microsecond' if switch < 1e-6 else f'{switch * 1e6:.1f} us'}")

    # The contexts wait for their next use, because the driver does not give their memory back.
    use = system.memory()[dev.device_id]
    print(f"{use.stored} contexts in the store, {use.destroyed} destroyed")
    assert use.destroyed == 0


if __name__ == "__main__":
    main()
