"""Kernels that keep SMs busy for a known time, for loop.py: no framework, and no GPU with CUDA_GCTX_DRIVER=sim."""

from __future__ import annotations

from cuda_gctx import Device, Event, EventOptions, Stream, tune

US = 1_000


class _Work:
    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream or Device(0).create_stream()

    def mark(self) -> Event:
        return self.stream.record(options=EventOptions(timing_enabled=True))

    def is_done(self, mark: Event) -> bool:
        return mark.is_done

    def wait(self, mark: Event) -> None:
        mark.sync()


class Control(_Work):
    def step(self) -> None:
        tune.spin(self.stream, blocks=16, spin_ns=50 * US)

    def us(self, begin: Event, end: Event) -> float:
        return (end - begin) * 1000


class Bulk(_Work):
    def step(self) -> None:
        tune.spin(self.stream, blocks=4 * Device(0).sm_count, spin_ns=1000 * US)
