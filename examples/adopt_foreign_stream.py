"""Adopt a stream of another library, and read which SMs it runs on.

The other library is played by raw driver calls: it makes a stream while a green context is current, as any library does
that knows nothing of green contexts.
"""

from __future__ import annotations

import ctypes

from cuda_gctx import ContextOptions, Device, SMResourceOptions, Stream, system

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class ForeignStream:
    """What other libraries hand out: an object with ``__cuda_stream__``."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL(system.driver_path)
        self._handle = ctypes.c_void_p()
        if self._driver.cuStreamCreate(ctypes.byref(self._handle), NON_BLOCKING) != 0:
            raise RuntimeError("cuStreamCreate failed")

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle.value or 0

    def destroy(self) -> None:
        self._driver.cuStreamDestroy_v2(self._handle)


def main() -> None:
    dev = Device(0)
    print(dev.name)
    (group,), _ = dev.resources.sm.split(SMResourceOptions(2 * dev.resources.sm.min_partition_size))
    ctx = dev.create_context(ContextOptions(resources=[group], name="control"))
    with ctx.current():
        foreign = ForeignStream()

    stream = Stream(foreign)  # keeps `foreign`, and never destroys what is not its own
    print(f"context: {stream.context}, the one that was current: {stream.context == ctx}")
    print(f"green: {stream.context.is_green}, owned: {stream.is_owned}, SMs: {stream.resources.sm.sm_count}")
    assert stream.resources.sm.sm_count == group.sm_count < dev.sm_count

    stream.close()
    foreign.destroy()  # before its context: afterwards drivers up to 13.0 refuse to destroy it
    ctx.close()


if __name__ == "__main__":
    main()
