"""An asyncio server whose requests keep their SMs while bulk work runs: no thread, and no call that blocks the loop.

A client sends a number of blocks; the server runs a kernel of that size in its own partition, and answers when the
kernel has finished. The kernels here only spin; yours would come from torch, CuPy or cuda.core.
"""

from __future__ import annotations

import asyncio

from cuda_gctx import Device, Partition, Partitions, tune

US = 1_000


class Server:
    """Answers requests from one partition, and runs bulk work in another."""

    def __init__(self, parts: Partitions) -> None:
        self.parts = parts
        self.streams = parts.requests.stream_pool(4)  # requests on different streams run at the same time
        self.served = self.chunks = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: a line with a number for each request."""
        while line := await reader.readline():
            stream = self.streams[self.served % len(self.streams)]
            self.served += 1
            tune.spin(stream, blocks=int(line), spin_ns=50 * US)
            await stream.record()  # other requests are served meanwhile
            writer.write(b"done\n")
        writer.close()

    async def bulk(self, part: Partition) -> None:
        """Chunks of bulk work, one after the other. A cancelled wait leaves the chunk on the device alone."""
        while True:
            tune.spin(part.stream, blocks=2 * part.sm_count, spin_ns=500 * US)
            await part.done()
            self.chunks += 1


async def client(port: int, requests: int) -> list[bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = []
    for _ in range(requests):
        writer.write(b"8\n")
        answers.append(await reader.readline())
    writer.close()
    return answers


async def serve(parts: Partitions) -> None:
    server = Server(parts)
    listening = await asyncio.start_server(server.answer, "127.0.0.1")
    port = listening.sockets[0].getsockname()[1]
    bulk = asyncio.create_task(server.bulk(parts.bulk))
    answers = await asyncio.gather(*(client(port, requests=5) for _ in range(8)))
    while not server.chunks:
        await parts.bulk.done()
        await asyncio.sleep(0)
    bulk.cancel()
    listening.close()
    await parts.bulk.done()
    print(f"{sum(map(len, answers))} requests of {len(answers)} clients were answered")
    print("bulk work went on meanwhile" if server.chunks else "bulk work did not run")


def main() -> None:
    dev = Device(0)
    with dev.partition(requests=16, bulk=None) as parts:
        parts.verify()
        print(f"{dev.name}: requests have {parts.requests.sm_count} SMs, bulk work has {parts.bulk.sm_count}")
        asyncio.run(serve(parts))


if __name__ == "__main__":
    main()
