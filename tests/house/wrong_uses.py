"""Programs that are wrong, which is what their types are for: mypy finds each line, and an ignore without need.

Nothing runs here. The stubs of the compiled modules and the types of the others are as exact as these lines.
"""

from cuda_gctx import (
    Context,
    ContextOptions,
    Device,
    Event,
    EventOptions,
    SMResourceOptions,
    Stream,
    StreamOptions,
    system,
)
from cuda_gctx.tune import spin


def wrong_values(dev: Device, stream: Stream) -> None:
    dev.resources.sm.split("8")  # type: ignore[arg-type]
    SMResourceOptions(backfill="yes")  # type: ignore[arg-type]
    StreamOptions(priority=1.5)  # type: ignore[arg-type]
    ContextOptions(resources=dev.resources.sm)  # type: ignore[arg-type]
    Context.from_handle("0x1")  # type: ignore[arg-type]
    stream.wait(3)  # type: ignore[arg-type]
    spin(stream, "8", 10)  # type: ignore[arg-type]
    dev.partition(16, among="some")  # type: ignore[arg-type]
    dev.sm_count = 4  # type: ignore[misc]


def wrong_fields(dev: Device, stream: Stream) -> None:
    dev.create_stream({"prioritty": -1})  # type: ignore[arg-type]
    dev.create_stream({"priority": "high"})  # type: ignore[arg-type]
    dev.create_context({"exclusive": True})  # type: ignore[arg-type]
    dev.resources.sm.split({"counts": 8})  # type: ignore[arg-type]
    stream.record(options={"timing": True})  # type: ignore[arg-type]


def wrong_parameters(stream: Stream) -> None:
    EventOptions(timing=True)  # type: ignore[call-arg]
    Stream.from_handle()  # type: ignore[call-arg]
    spin(stream, 8)  # type: ignore[call-arg]


def wrong_results(dev: Device, stream: Stream) -> None:
    stream.record().elapsed()  # type: ignore[attr-defined]
    _number: str = dev.device_id  # type: ignore[assignment]
    _event: Event = dev.create_stream()  # type: ignore[assignment]
    _groups, _rest, _third = dev.resources.sm.split(8)  # type: ignore[misc]
    _version: str = system.driver_version  # type: ignore[assignment]


def wrong_uses_of_partitions(dev: Device) -> None:
    with dev.partition(decode=16, prefill=None) as parts:
        _name: str = parts.decode.streem  # type: ignore[attr-defined]
        parts["decode"].max_blocks(threads="128")  # type: ignore[arg-type]
        parts.verify(timeout="10")  # type: ignore[arg-type]
