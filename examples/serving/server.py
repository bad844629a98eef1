"""A server on one GPU that keeps a limit on the time between two tokens: it measures, chooses a plan, and says why.

    python examples/serving/server.py --limit 25ms
    CUDA_GCTX_DRIVER=sim python examples/serving/server.py --limit 25ms

Requests come from coroutines. Prompts are prefilled in chunks, answers are decoded in batches, each on the stream that
the plan gives it. While no prompt waits, decode has the whole device. The model here is made up and its kernels only
spin: replace MadeUpModel by yours, which launches on the stream that it is given (``with stream.torch(): ...``).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from itertools import pairwise

from cuda_gctx import Device, Event, EventOptions, GraphSet, Layout, PartitionPool, Stream
from cuda_gctx.tune import Plan, spin

PARTS = ("decode", "prefill")
DECODE_SMS = (16, 24, 32, 48)  # for decode, in partitions; an overlay leaves as many SMs to decode alone
BATCHES = (1, 4, 16)  # a graph of a decode step for each
STEPS = 12  # decode steps of a trial
MARGIN = 0.9  # the share of the limit that a trial may use: other requests come than those of the trial
TIMED = EventOptions(timing_enabled=True)
US = 1_000


class MadeUpModel:
    """Kernels in the shape of a model: a prefill that fills the device, a decode step that 16 SMs serve as well."""

    chunk = 512  # tokens of a prompt in one call of prefill()

    def prefill(self, stream: Stream) -> None:
        """Enqueue a chunk of a prompt."""
        for _ in range(4):
            spin(stream, blocks=1056, spin_ns=2_000 * US)

    def decode(self, stream: Stream, batch: int) -> None:
        """Enqueue one token of every answer of a batch, of which there is one graph for each size."""
        for _ in range(4):
            spin(stream, blocks=32, spin_ns=(400 + 10 * batch) * US)


@dataclass(frozen=True)
class Trial:
    """What a plan showed: the longest time between two decode steps that ended, and chunks of prompts per second."""

    plan: Plan
    gap_ms: float
    chunks_per_s: float

    def keeps(self, limit_ms: float) -> bool:
        return self.gap_ms <= MARGIN * limit_ms


def plans() -> list[Plan]:
    """The ways to run both: one stream, two, with priority, over and in partitions."""
    layouts = [Layout(decode=sms, prefill=None) for sms in DECODE_SMS]
    return [
        Plan("sequence", PARTS),
        Plan("streams", PARTS),
        Plan("priority", PARTS, first="decode"),
        *(Plan("overlay", PARTS, layout, {"prefill": "prefill"}, first="decode") for layout in layouts),
        *(Plan("partitions", PARTS, layout, {part: part for part in PARTS}) for layout in layouts),
    ]


WHOLE = Plan("priority", PARTS, first="decode")  # decode has the whole device while there are no prompts


def called(plan: Plan) -> str:
    if plan.layout is None:
        return str(plan)
    sms = plan.layout.specs[0].request
    return f"overlay, {sms} SMs left to decode" if plan.kind == "overlay" else f"partitions, {sms} SMs for decode"


def measure(pool: PartitionPool, graphs: GraphSet, model: MadeUpModel, plan: Plan) -> Trial:
    """Run decode steps one after the other while prefill is kept busy."""
    streams = plan.switch(pool)
    decode, prefill = streams["decode"], streams["prefill"]
    capture(graphs, model, decode)
    ends: list[Event] = [decode.record(None, TIMED)]
    chunks: list[Event] = [prefill.record(None, TIMED)]
    for _ in range(STEPS):
        # Two chunks are always queued, so that prefill never waits for the host; on one stream it takes turns.
        if plan.kind == "sequence" or chunks[-2:][0].is_done:
            while len(chunks) < 2 or chunks[-2].is_done:
                model.prefill(prefill)
                chunks.append(prefill.record(None, TIMED))
                if plan.kind == "sequence":
                    break
        graphs.replay(decode, BATCHES[-1])
        ends.append(decode.record(None, TIMED))
        ends[-1].sync()
    pool.device.sync()
    gaps = [after - before for before, after in pairwise(ends)]
    seconds = (chunks[-1] - chunks[0]) / 1e3
    return Trial(plan, max(gaps), (len(chunks) - 1) / seconds if seconds else 0.0)


def capture(graphs: GraphSet, model: MadeUpModel, stream: Stream) -> None:
    """Graphs of decode steps on a stream, one for each size of batch, unless there are."""
    for batch in BATCHES:
        if (stream, batch) not in graphs:
            model.decode(stream, batch)  # once before a capture, so that its kernels are loaded
            stream.sync()
            graphs.capture(stream, batch, lambda stream, batch=batch: model.decode(stream, batch))


def choose(trials: list[Trial], limit_ms: float) -> tuple[Trial, str]:
    """The plan with the highest rate of prefill among those that keep the limit, the simplest first; and the reason."""
    keeping = [trial for trial in trials if trial.keeps(limit_ms)]
    if not keeping:
        best = min(trials, key=lambda trial: trial.gap_ms)
        return best, f"no plan keeps {MARGIN:.0%} of {limit_ms:g} ms: this one has the shortest gap"
    most = max(trial.chunks_per_s for trial in keeping)
    # Within 2% of the best rate, the simpler plan is the better one.
    best = next(trial for trial in keeping if trial.chunks_per_s >= 0.98 * most)
    faster = [trial for trial in trials if trial.chunks_per_s > best.chunks_per_s and not trial.keeps(limit_ms)]
    reason = "the highest rate of prefill within the limit"
    if faster:
        other = max(faster, key=lambda trial: trial.chunks_per_s)
        more = other.chunks_per_s / best.chunks_per_s - 1
        reason += f"; with {called(other.plan)} prefill is {more:.0%} faster, and gaps reach {other.gap_ms:.1f} ms"
    if best.plan.layout is None:
        reason += "; partitions do not pay here"
    return best, reason


async def ended(event: Event) -> None:
    """Polls without a pause, for a server that has a core to itself; ``await event`` would spare the processor."""
    while not event.is_done:
        await asyncio.sleep(0)


@dataclass(eq=False)
class Request:
    prompt: int
    answer: int
    tokens: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)
    made: int = 0


class Server:
    """Serves coroutines with one plan for the time in which prompts wait, and the whole device for decode else."""

    def __init__(self, pool: PartitionPool, graphs: GraphSet, model: MadeUpModel, plan: Plan) -> None:
        self.pool, self.graphs, self.model, self.plan = pool, graphs, model, plan
        self.prompts: asyncio.Queue[Request] = asyncio.Queue()
        self.batch: list[Request] = []
        self.joined = asyncio.Event()
        self.turn = asyncio.Lock()  # on one stream, prefill and decode take turns
        self.gaps_ms: list[float] = []
        self.switches = 0
        for one in (plan, WHOLE):
            capture(graphs, model, one.switch(pool)["decode"])
        self.streams = WHOLE.switch(pool)

    def switch(self, plan: Plan) -> None:
        """Ordered on the device behind the work of the plan before, where the two share SMs. The host goes on."""
        streams = plan.switch(self.pool)
        self.switches += streams != self.streams
        self.streams = streams

    async def answer(self, prompt: int, answer: int) -> AsyncIterator[int]:
        """The tokens of an answer, as they come."""
        request = Request(prompt, answer)
        self.prompts.put_nowait(request)
        while (token := await request.tokens.get()) is not None:
            yield token

    async def prefill(self) -> None:
        while True:
            if self.prompts.empty():
                self.switch(WHOLE)
            request = await self.prompts.get()
            self.switch(self.plan)
            for _ in range(0, request.prompt, self.model.chunk):
                async with self.exclusive():
                    self.model.prefill(self.streams["prefill"])
                    await ended(self.streams["prefill"].record())
            self.emit(request)
            if request.made < request.answer:
                self.batch.append(request)
                self.joined.set()

    async def decode(self) -> None:
        last: Event | None = None
        while True:
            if not self.batch:
                last = None
                self.joined.clear()
                await self.joined.wait()
            async with self.exclusive():
                batch = self.batch[: BATCHES[-1]]
                stream = self.streams["decode"]
                self.graphs.replay(stream, next(size for size in BATCHES if size >= len(batch)))
                end = stream.record(None, TIMED)
                await ended(end)
            if last is not None and end.context == last.context:
                self.gaps_ms.append(end - last)
            last = end
            for request in batch:
                self.emit(request)
            self.batch = [request for request in self.batch if request.made < request.answer]

    def exclusive(self) -> asyncio.Lock | asyncio.Semaphore:
        return self.turn if self.plan.kind == "sequence" else asyncio.Semaphore()

    @staticmethod
    def emit(request: Request) -> None:
        request.made += 1
        request.tokens.put_nowait(request.made)
        if request.made >= request.answer:
            request.tokens.put_nowait(None)


async def client(server: Server, prompt: int, answer: int) -> int:
    """Asks for one answer; returns the number of tokens that came."""
    return len([token async for token in server.answer(prompt, answer)])


async def all_of(clients: list[Coroutine[None, None, int]]) -> list[int]:
    return await asyncio.gather(*clients)


async def serve(server: Server, requests: int, seed: int) -> int:
    """Requests of random lengths, each from its own coroutine; returns the number of tokens."""
    lengths = random.Random(seed)
    clients = [client(server, lengths.randrange(1, 2048), lengths.randrange(2, 16)) for _ in range(requests)]
    loops = [asyncio.create_task(loop) for loop in (server.prefill(), server.decode())]
    answers = asyncio.create_task(all_of(clients))
    # A loop that fails ends the server, instead of leaving its clients waiting.
    await asyncio.wait([answers, *loops], return_when=asyncio.FIRST_COMPLETED)
    for loop in loops:
        if loop.done():
            answers.cancel()
            loop.result()
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    return sum(await answers)


def milliseconds(text: str) -> float:
    """25ms, 25 or 0.025s, in milliseconds."""
    for unit, factor in (("ms", 1.0), ("s", 1e3), ("", 1.0)):
        if text.endswith(unit):
            value = float(text.removesuffix(unit)) * factor
            break
    if not value > 0:
        raise ValueError(f"a limit is more than 0 ms, not {text}")
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--limit", type=milliseconds, default=25.0, help="between two tokens of an answer (25ms)")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    # A hardware queue for each stream; before the driver is used. With fewer, streams wait for each other.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    device = Device(0)
    model = MadeUpModel()
    with PartitionPool(device) as pool, GraphSet() as graphs:
        trials = [measure(pool, graphs, model, plan) for plan in plans()]
        best, reason = choose(trials, options.limit)
        print(f"{device.name}, limit {options.limit:g} ms between two tokens")
        for trial in trials:
            mark = ">" if trial is best else " " if trial.keeps(options.limit) else "x"
            print(f"{mark} {called(trial.plan):36} gap {trial.gap_ms:6.1f} ms   {trial.chunks_per_s:6.1f} chunks/s")
        print(f"chosen: {called(best.plan)}: {reason}")

        server = Server(pool, graphs, model, best.plan)
        tokens = asyncio.run(serve(server, options.requests, options.seed))
        gaps = sorted(server.gaps_ms)
        longest = f"the longest gap {gaps[-1]:.1f} ms" if gaps else "no two tokens followed each other"
        print(f"{options.requests} requests, {tokens} tokens, {server.switches} switches; {longest}")
        device.sync()


if __name__ == "__main__":
    main()
