"""The benefit of a background partition: the latency of a short kernel alone, next to a load, and isolated from it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from cuda_gctx._core import clock
from cuda_gctx._core.extension import Context, Stream, StreamOptions, probe_blocks_per_sm, spin
from cuda_gctx.measure.loop import CallTimer, Load
from cuda_gctx.measure.summaries import summary

__all__ = ["LatencyRow", "SharedQueueError", "background_load", "measure_latencies", "stream_next_to"]

# So few that they fit into 8 SMs of any card at once.
SHORT_BLOCKS = 8
SHORT_NS = 5_000
# A launch of the load occupies its SMs for this long, once per wave.
LOAD_BLOCK_NS = 750_000
LOAD_WAVES = 2
# Enough to keep the load running while the host waits for a short kernel.
LOAD_LAUNCHES = 4
WARM_UPS = 5
MOST_STREAMS = 32  # as many as there can be hardware queues
# The limit for a row on a device that other processes keep busy too.
LONGEST_ROW_S = 3.0


class SharedQueueError(RuntimeError):
    """The streams share a hardware queue and wait for each other: their latencies do not depend on SMs."""


@dataclass(frozen=True)
class LatencyRow:
    """The latency of the short kernel on one kind of stream, with the load on another stream or without it.

    us: a summary in microseconds.
    """

    key: str
    short_kernel_on: str
    load_on: str
    us: dict[str, float]


def background_load(stream: Stream) -> Load:
    """A load that fills all SMs of a stream's context whenever it is refilled in time."""
    blocks = LOAD_WAVES * probe_blocks_per_sm(stream.context) * stream.context.sm_count
    return Load(stream, partial(spin, stream, blocks, LOAD_BLOCK_NS), LOAD_LAUNCHES)


def _has_its_own_queue(stream: Stream, load: Load) -> bool:
    """Tells whether the load is in another hardware queue than the work of a stream."""
    load.fill()
    with stream.record() as mark:
        while not mark.is_done:
            if load.has_completed_a_call:
                return False
    return True


def stream_next_to(load: Load, make: Callable[[], Stream]) -> Stream:
    """A stream that shares no hardware queue with the load; the driver assigns queues to streams in turn."""
    with ExitStack() as sharing:
        for _ in range(MOST_STREAMS):
            stream = make()
            if _has_its_own_queue(stream, load):
                return stream
            sharing.enter_context(stream)
    raise SharedQueueError(
        "every stream shares a hardware queue with the background load and waits for it on any SM: set "
        "CUDA_DEVICE_MAX_CONNECTIONS to 8 or more before the driver is first used"
    )


def _latencies(stream: Stream, load: Load | None, count: int, show: Callable[[float], None]) -> list[float]:
    """Latencies of the short kernel in seconds, one launch after the other. show: takes the share that is done."""
    samples: list[float] = []
    launch = partial(spin, stream, SHORT_BLOCKS, SHORT_NS)
    give_up = clock.now() + LONGEST_ROW_S
    with CallTimer(stream) as timer:
        for number in range(WARM_UPS + count):
            if load is not None:
                load.fill()
            seconds = timer.seconds(launch)
            show(number / (WARM_UPS + count))
            if number >= WARM_UPS:
                samples.append(seconds)
                if clock.now() > give_up:
                    break
    return samples


def _measured(
    make: Callable[[], Stream], make_load: Callable[[], Stream] | None, count: int, show: Callable[[float], None]
) -> list[float]:
    with ExitStack() as closing:
        if make_load is None:
            return _latencies(closing.enter_context(make()), None, count, show)
        load = closing.enter_context(background_load(closing.enter_context(make_load())))
        return _latencies(closing.enter_context(stream_next_to(load, make)), load, count, show)


def measure_latencies(
    inside: Context, outside: Context, count: int, show: Callable[[float, str], None]
) -> tuple[LatencyRow, ...]:
    """Measure the short kernel `count` times on each kind of stream, with and without the load.

    inside: the context of the short kernel. outside: the context of the load, on other SMs.

    show: takes the share of the work that is done, and what is measured.

    The launches follow each other without a pause, like the requests of one client.
    """
    device = inside.device
    plain = device.create_stream
    urgent = partial(plain, StreamOptions(priority=device.priority_range[1]))
    apart, load = inside.create_stream, outside.create_stream
    name = f"partition of {inside.sm_count} SMs"
    rows: tuple[tuple[str, str, Callable[[], Stream], str, Callable[[], Stream] | None], ...] = (
        ("alone", "plain stream", plain, "(none)", None),
        ("plain", "plain stream", plain, "plain stream", plain),
        ("priority", "stream of highest priority", urgent, "plain stream", plain),
        ("partition_alone", name, apart, "(none)", None),
        ("partition_only", name, apart, "plain stream", plain),
        ("isolated", name, apart, f"background ({outside.sm_count} SMs)", load),
    )

    def row_of(number: int) -> LatencyRow:
        key, short_on, make, load_on, make_load = rows[number]

        def show_row(share: float) -> None:
            show((number + share) / len(rows), f"measuring on a {short_on}, load: {load_on}")

        return LatencyRow(key, short_on, load_on, summary(_measured(make, make_load, count, show_row), 1e-6, 2))

    return tuple(map(row_of, range(len(rows))))
