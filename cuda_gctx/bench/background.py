"""What a fence is worth: how long a short kernel takes alone, beside a load on all SMs, and fenced off from it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from cuda_gctx._core.event import Event, EventOptions
from cuda_gctx._core.probe import probe_blocks_per_sm, spin
from cuda_gctx._core.stream import Stream, StreamOptions
from cuda_gctx.measure.causes import MOST_CONNECTIONS
from cuda_gctx.partitions import Partition, Partitions

# As few as fit into 8 SMs of any card at once.
SHORT_BLOCKS = 8
SHORT_NS = 5_000
# A launch of the hog holds its SMs for this long, as often as there are waves.
HOG_BLOCK_NS = 750_000
HOG_WAVES = 2
# Enough that the hog does not run dry while the host waits for a short kernel.
HOG_LAUNCHES = 4
WARM_UPS = 5
# A device that others keep busy too must not make anybody wait for long.
LONGEST_ROW_S = 3.0


class SharedQueueError(RuntimeError):
    """Nothing can be said of SMs, because the streams wait for each other in a hardware queue."""


@dataclass(frozen=True)
class Spread:
    """Times of many launches, in microseconds."""

    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of_ns(cls, samples: Sequence[float]) -> Spread:
        ordered = [round(sample / 1000, 2) for sample in sorted(samples)]
        p50, p90, p99 = (ordered[len(ordered) * percent // 100] for percent in (50, 90, 99))
        return cls(p50, p90, p99, ordered[-1])


@dataclass(frozen=True)
class Latency:
    """How long the short kernel took on one kind of stream, with the hog on another or without it.

    us: from just before the host launched the kernel, until it was over, by timing events of the device.
    """

    key: str
    short_kernel_on: str
    hog_on: str
    samples: int
    us: Spread


class Hog:
    """A load that fills the context of a stream: so many launches are always queued there, and never more."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._blocks = HOG_WAVES * probe_blocks_per_sm(stream.context) * stream.context.sm_count
        self._idle = [stream.context.create_event() for _ in range(HOG_LAUNCHES)]
        self._queued: deque[Event] = deque()

    @property
    def has_ended_a_launch(self) -> bool:
        return bool(self._queued) and self._queued[0].is_done

    def fill(self) -> None:
        """Launches again as often as a launch has ended."""
        while self.has_ended_a_launch:
            self._idle.append(self._queued.popleft())
        while self._idle:
            spin(self._stream, self._blocks, HOG_BLOCK_NS)
            self._queued.append(self._stream.record(self._idle.pop()))

    def end(self) -> None:
        self._stream.sync()
        for event in (*self._idle, *self._queued):
            event.close()


def _has_queue_of_its_own(stream: Stream, hog: Hog) -> bool:
    """Whether what is put on a stream does not stand behind the hog in a hardware queue."""
    hog.fill()
    with stream.record() as mark:
        while not mark.is_done:
            if hog.has_ended_a_launch:
                return False
    return True


def stream_beside(hog: Hog, make: Callable[[], Stream]) -> Stream:
    """A stream that shares no hardware queue with the hog, as the driver deals these out to streams in turn."""
    with ExitStack() as sharing:
        for _ in range(MOST_CONNECTIONS):
            stream = make()
            if _has_queue_of_its_own(stream, hog):
                return stream
            sharing.enter_context(stream)
    raise SharedQueueError(
        "every stream shares a hardware queue with the load beside it, so that it waits whatever its SMs are: set "
        "CUDA_DEVICE_MAX_CONNECTIONS to 8 or more, before the driver is first used"
    )


def _launches(stream: Stream, hog: Hog | None, count: int) -> list[float]:
    """Times of the short kernel in ns, one launch after the other."""
    samples: list[float] = []
    timed = EventOptions(timing_enabled=True)
    give_up = time.monotonic() + LONGEST_ROW_S
    with stream.context.create_event(timed) as begin, stream.context.create_event(timed) as end:
        for number in range(WARM_UPS + count):
            if hog is not None:
                hog.fill()
            # Waited for: an event that the device takes up late would hide that the launch behind it is late too.
            stream.record(begin)
            begin.sync()
            spin(stream, SHORT_BLOCKS, SHORT_NS)
            stream.record(end)
            end.sync()
            if number >= WARM_UPS:
                samples.append((end - begin) * 1e6)
                if time.monotonic() > give_up:
                    break
    return samples


def _beside(make: Callable[[], Stream], make_hog: Callable[[], Stream] | None, count: int) -> list[float]:
    with ExitStack() as closing:
        if make_hog is None:
            return _launches(closing.enter_context(make()), None, count)
        hog = Hog(closing.enter_context(make_hog()))
        closing.callback(hog.end)
        return _launches(closing.enter_context(stream_beside(hog, make)), hog, count)


def measure_fence(parts: Partitions, part: Partition, count: int) -> tuple[Latency, ...]:
    """The short kernel everywhere that somebody might put it, so many times each; the partitions must have a fence.

    The launches follow each other without a pause, as the requests of one client do.
    """
    assert parts.rest is not None
    plain = parts.device.create_stream
    urgent = partial(plain, StreamOptions(priority=parts.device.priority_range[1]))
    inside, fence = part.context.create_stream, parts.rest.context.create_stream
    name = f"partition of {part.sm_count} SMs"
    rows: tuple[tuple[str, str, Callable[[], Stream], str, Callable[[], Stream] | None], ...] = (
        ("alone", "plain stream", plain, "(no hog)", None),
        ("beside", "plain stream", plain, "plain stream", plain),
        ("priority", "stream of highest priority", urgent, "plain stream", plain),
        ("partition_alone", name, inside, "(no hog)", None),
        ("unfenced", f"{name}, no fence", inside, "plain stream", plain),
        ("fenced", f"{name}, fenced", inside, f"the fence ({parts.rest.sm_count} SMs)", fence),
    )
    found = []
    for key, short_on, make, hog_on, make_hog in rows:
        samples = _beside(make, make_hog, count)
        found.append(Latency(key, short_on, hog_on, len(samples), Spread.of_ns(samples)))
    return tuple(found)
