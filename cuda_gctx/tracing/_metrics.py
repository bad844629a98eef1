"""Metrics of partitions while a traced program runs, as the text that Prometheus reads: over HTTP, or in a file."""

from __future__ import annotations

import os
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path
from types import TracebackType

__all__ = ["Labels", "LaneMeter", "MetricsFile", "MetricsServer", "exposition", "published"]

# Upper bounds of the histogram of queueing, in nanoseconds. The last bucket has none.
BOUNDS_NS = (*(round(digit * 10**power) for power in range(3, 9) for digit in (1, 2.5, 5)), 10**9)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FILE_INTERVAL_S = 1.0

# The names and values of labels, in the order in which they are written.
Labels = tuple[tuple[str, str], ...]


@dataclass
class LaneMeter:
    """Counts the work of a partition. All counts only grow.

    Busy time is the time in which something of the partition runs. Work that arrives after later work adds the part of
    its time that follows the end of the later work, so that no time counts twice.
    """

    sm_count: int = 0
    kernels: int = 0
    busy_ns: int = 0
    queueing_ns: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_NS) + 1))
    _busy_until: int = 0

    def add_span(self, start: int, end: int) -> None:
        """Count the time of a kernel, a copy or a fill, in nanoseconds."""
        self.busy_ns += max(0, end - max(start, self._busy_until))
        self._busy_until = max(self._busy_until, end)

    def add_kernel(self, queueing_ns: int | None) -> None:
        """Count a kernel, with the time from its launch to its start if that is known."""
        self.kernels += 1
        if queueing_ns is not None:
            self.buckets[bisect_left(BOUNDS_NS, queueing_ns)] += 1
            self.queueing_ns += queueing_ns


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _sample(name: str, labels: Labels, value: float | int) -> str:
    words = ",".join(f"{key}={_quoted(text)}" for key, text in labels)
    return f"{name}{{{words}}} {value}" if words else f"{name} {value}"


def _family(name: str, kind: str, about: str, samples: Iterable[str]) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *samples]


def _histogram(name: str, labels: Labels, meter: LaneMeter) -> Iterable[str]:
    bounds = [*(f"{bound / 1e9:g}" for bound in BOUNDS_NS), "+Inf"]
    for bound, count in zip(bounds, accumulate(meter.buckets), strict=True):
        yield _sample(f"{name}_bucket", (*labels, ("le", bound)), count)
    yield _sample(f"{name}_sum", labels, meter.queueing_ns / 1e9)
    yield _sample(f"{name}_count", labels, sum(meter.buckets))


def exposition(lanes: Mapping[Labels, LaneMeter], switches: Mapping[Labels, int], dropped: Mapping[Labels, int]) -> str:
    """The metrics of partitions, and of processes, as text for Prometheus."""
    queueing = "cuda_gctx_queueing_seconds"
    items = list(lanes.items())
    lines = _family(
        "cuda_gctx_sms",
        "gauge",
        "SMs of a partition.",
        (_sample("cuda_gctx_sms", key, one.sm_count) for key, one in items),
    )
    name = "cuda_gctx_busy_seconds_total"
    about = "Time in which something of a partition ran."
    lines += _family(name, "counter", about, (_sample(name, key, one.busy_ns / 1e9) for key, one in items))
    name = "cuda_gctx_kernels_total"
    lines += _family(name, "counter", "Kernels that ended.", (_sample(name, key, one.kernels) for key, one in items))
    about = "Time from the launch of a kernel, or of its graph, to its start."
    lines += _family(
        queueing, "histogram", about, (line for key, one in items for line in _histogram(queueing, key, one))
    )
    name = "cuda_gctx_switches_total"
    lines += _family(name, "counter", "Switches of layouts.", (_sample(name, key, n) for key, n in switches.items()))
    name = "cuda_gctx_dropped_records_total"
    about = "Records of work that were lost, and that the other metrics lack."
    lines += _family(name, "counter", about, (_sample(name, key, n) for key, n in dropped.items()))
    return "\n".join(lines) + "\n"


class MetricsServer:
    """Serves metrics at /metrics while it is open. Use it as a context. Port 0 is any free port."""

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        answer = text

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path != "/metrics":
                    self.send_error(404, "the metrics are at /metrics")
                    return
                body = answer().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Writes nothing: the standard error is the program's."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/metrics"

    def __str__(self) -> str:
        return self.url

    def __enter__(self) -> MetricsServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class MetricsFile:
    """Writes metrics into a file each second, and once more at the end. Use it as a context.

    The file is replaced as a whole, so that a reader never sees a part of it. If a later write fails, as on a full
    disk, the file keeps the metrics of the write before.
    """

    def __init__(self, path: str | os.PathLike[str], text: Callable[[], str]) -> None:
        self._path = Path(path)
        self._text = text
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="metrics", daemon=True)

    def __enter__(self) -> MetricsFile:
        self._write()  # raises OSError here, where the path is wrong
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        with suppress(OSError):
            self._write()

    def __str__(self) -> str:
        return str(self._path)

    def _repeat(self) -> None:
        while not self._is_over.wait(FILE_INTERVAL_S):
            with suppress(OSError):
                self._write()

    def _write(self) -> None:
        part = self._path.with_name(f".{self._path.name}.part")
        part.write_text(self._text(), encoding="utf-8")
        os.replace(part, self._path)


def published(where: str, text: Callable[[], str]) -> MetricsServer | MetricsFile:
    """Publish metrics at a PORT of the loopback interface, at HOST:PORT, or in a file.

    Raises OSError if the address is in use, and ValueError for a number that is no port.
    """
    found = re.fullmatch(r"(?:(?P<host>[^/]+):)?(?P<port>\d+)", where)
    if found is None:
        return MetricsFile(where, text)
    port = int(found["port"])
    if port > 65535:
        raise ValueError(f"{port} is not a port: ports end at 65535; for a file of this name, write ./{where}")
    return MetricsServer(found["host"] or "127.0.0.1", port, text)
