"""An asyncio server with two classes of priority. Each class has a partition, so urgent requests wait for no batch.

A request is a line with its class and a number of blocks, "urgent 8" or "batch 464". The server runs a kernel of that
size in the partition of the class, and answers with its time on the device, in us. It starts no thread, and no call
blocks the loop. The kernels here only spin; yours would come from torch, CuPy or cuda.core.

    python examples/asyncio_server.py            # a partition for each class
    python examples/asyncio_server.py --without  # a stream priority for each class
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from itertools import cycle

from cuda_gctx import Device, EventOptions, Stream, tune

TIMED = EventOptions(timing_enabled=True)
BLOCK_NS = {"urgent": 50_000, "batch": 1_000_000}
STREAMS = 4  # of each class, so that its requests run at the same time


class Server:
    """Answers requests of each class on the streams of that class."""

    def __init__(self, streams: dict[str, tuple[Stream, ...]]) -> None:
        self.streams = {name: cycle(each) for name, each in streams.items()}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        while line := await reader.readline():
            name, blocks = line.decode().split()
            stream = next(self.streams[name])
            with stream.record(options=TIMED) as begin:
                tune.spin(stream, blocks=int(blocks), spin_ns=BLOCK_NS[name])
                with stream.record(options=TIMED) as end:
                    await end  # the loop serves other requests meanwhile
                    writer.write(b"%.0f\n" % (1000 * (end - begin)))
        writer.close()


async def client(port: int, request: str, count: int) -> list[int]:
    """Sends requests one after the other, and returns their times."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times = []
    for _ in range(count):
        writer.write(f"{request}\n".encode())
        times.append(int(await reader.readline()))
    writer.close()
    return times


async def serve(streams: dict[str, tuple[Stream, ...]]) -> None:
    listening = await asyncio.start_server(Server(streams).answer, "127.0.0.1")
    port = listening.sockets[0].getsockname()[1]
    batch = [client(port, "batch 464", 5) for _ in range(STREAMS)]
    urgent = [client(port, "urgent 8", 10) for _ in range(STREAMS)]
    times = await asyncio.gather(*batch, *urgent)
    listening.close()
    for name, found in ("urgent", times[STREAMS:]), ("batch", times[:STREAMS]):
        ordered = sorted(us for each in found for us in each)
        print(f"{len(ordered)} {name} requests: at most {ordered[-1]} us")


def main() -> None:
    dev = Device(0)
    lowest, highest = dev.priority_range
    with ExitStack() as closing:
        if "--without" in sys.argv[1:]:
            priorities = {"urgent": highest, "batch": lowest}
            streams = {
                name: tuple(closing.enter_context(dev.create_stream({"priority": each})) for _ in range(STREAMS))
                for name, each in priorities.items()
            }
            print(f"{dev.name}: a stream priority for each class")
        else:
            parts = closing.enter_context(dev.partition(urgent=16, batch=None))
            parts.verify()
            streams = {part.name: part.stream_pool(STREAMS) for part in parts}
            print(f"{dev.name}: urgent has {parts.urgent.sm_count} SMs, batch has {parts.batch.sm_count}")
        asyncio.run(serve(streams))


if __name__ == "__main__":
    main()
