"""A server on one GPU that keeps a limit on the time between two tokens: it measures, serves by a policy, and says why.

    python examples/serving/server.py --limit 25ms
    CUDA_GCTX_DRIVER=sim python examples/serving/server.py --limit 25ms

Requests come from coroutines. Prompts are prefilled in chunks, answers are decoded in batches, each on the stream of
the plan that the policy chooses for the present batch, or a share of a chunk in one step with a batch. While no prompt
waits, decode has the whole device. The same requests are then served on plain streams, and with the best share in each
step. The model is made up and its kernels only spin: replace MadeUpModel by yours, which launches on the stream that it
is given (``with use(stream): ...``, of cuda_gctx.interop.torch).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise

from cuda_gctx import Device, Event, EventOptions, GraphSet, Layout, PartitionPool, Stream
from cuda_gctx.tune import Plan, Policy, spin

PARTS = ("decode", "prefill")
DECODE_SMS = (16, 24, 32, 48)  # for decode, in partitions; an overlay leaves as many SMs to decode alone
SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of a chunk of a prompt, in one step with decode
BATCHES = (1, 4, 16)  # a graph of a decode step for each
STEPS = 8  # decode steps of a trial
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

    def together(self, stream: Stream, batch: int, share: float) -> None:
        """Enqueue both in one step, which fills the device and reads the weights once."""
        for _ in range(4):
            spin(stream, blocks=264, spin_ns=round((300 + 10 * batch + share * 8_000) * US))


@dataclass(frozen=True)
class Trial:
    """What a plan showed for a batch: the longest time between two decode steps, and chunks of prompts per second."""

    plan: Plan
    batch: int
    gap_ms: float
    chunks_per_s: float


STREAMS = Plan("streams", PARTS)
TOGETHER = [Plan("together", PARTS, first="decode", share=share) for share in SHARES]
WHOLE = Plan("priority", PARTS, first="decode")  # decode has the whole device while there are no prompts


def plans() -> list[Plan]:
    """The ways to run both: one stream, two, with priority, together, over and in partitions."""
    layouts = [Layout(decode=sms, prefill=None) for sms in DECODE_SMS]
    return [
        Plan("sequence", PARTS),
        STREAMS,
        WHOLE,
        *TOGETHER,
        *(Plan("overlay", PARTS, layout, {"prefill": "prefill"}, first="decode") for layout in layouts),
        *(Plan("partitions", PARTS, layout, {part: part for part in PARTS}) for layout in layouts),
    ]


def called(plan: Plan) -> str:
    if plan.layout is None:
        return str(plan)
    sms = plan.layout.specs[0].request
    return f"overlay, {sms} SMs left to decode" if plan.kind == "overlay" else f"partitions, {sms} SMs for decode"


def measure(pool: PartitionPool, graphs: GraphSet, model: MadeUpModel, plan: Plan, batch: int) -> Trial:
    """Run decode steps of a batch one after the other while prefill is kept busy."""
    streams = plan.switch(pool)
    decode, prefill = streams["decode"], streams["prefill"]
    capture(graphs, model, decode)
    ends: list[Event] = [decode.record(None, TIMED)]
    chunks: list[Event] = [prefill.record(None, TIMED)]
    for _ in range(STEPS):
        if plan.share is not None:
            model.together(decode, batch, plan.share)
            ends.append(decode.record(None, TIMED))
            continue
        # Two chunks are always queued, so that prefill never waits for the host; on one stream it takes turns.
        if plan.kind == "sequence" or chunks[-2:][0].is_done:
            while len(chunks) < 2 or chunks[-2].is_done:
                model.prefill(prefill)
                chunks.append(prefill.record(None, TIMED))
                if plan.kind == "sequence":
                    break
        graphs.replay(decode, batch)
        ends.append(decode.record(None, TIMED))
        ends[-1].sync()
    pool.device.sync()
    gap_ms = max(after - before for before, after in pairwise(ends))
    if plan.share is not None:
        return Trial(plan, batch, gap_ms, 1e3 * STEPS * plan.share / (ends[-1] - ends[0]))
    seconds = (chunks[-1] - chunks[0]) / 1e3
    return Trial(plan, batch, gap_ms, (len(chunks) - 1) / seconds if seconds else 0.0)


def capture(graphs: GraphSet, model: MadeUpModel, stream: Stream) -> None:
    """Graphs of decode steps on a stream, one for each size of batch, unless there are."""
    for batch in BATCHES:
        if (stream, batch) not in graphs:
            model.decode(stream, batch)  # once before a capture, so that its kernels are loaded
            stream.sync()
            graphs.capture(stream, batch, lambda stream, batch=batch: model.decode(stream, batch))


def policy_of(trials: list[Trial], device: Device | None = None) -> Policy:
    """For each batch and limit, the plan with the highest rate of prefill."""
    rows = [({"batch": one.batch}, one.plan, one.gap_ms / 1e3, one.chunks_per_s) for one in trials]
    return Policy.of(rows, latency="decode", bulk="prefill", quantile=1.0, device=device)


def reason(policy: Policy, limit_ms: float, batch: int) -> str:
    """What the policy chooses for a batch, and why."""
    limit_s = MARGIN * limit_ms / 1e3
    plan = policy.choose(limit_s, batch=batch)
    mine = policy.predict(plan, batch=batch)
    text = f"{called(plan)}: the highest rate of prefill within the limit"
    if mine.latency_s > limit_s:
        text = f"{called(plan)}: no plan keeps {MARGIN:.0%} of {limit_ms:g} ms, this one has the shortest gaps"
    other = max(policy.plans, key=lambda one: policy.predict(one, batch=batch).rate)
    faster = policy.predict(other, batch=batch)
    if faster.rate > mine.rate:
        more, gap_ms = faster.rate / mine.rate - 1, faster.latency_s * 1e3
        text += f"; with {called(other)} prefill is {more:.0%} faster, and gaps reach {gap_ms:.1f} ms"
    return text + ("; partitions do not pay here" if plan.layout is None else "")


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
    """Serves coroutines with the plan of a policy while prompts wait, and the whole device for decode else."""

    def __init__(
        self, pool: PartitionPool, graphs: GraphSet, model: MadeUpModel, policy: Policy, limit_ms: float
    ) -> None:
        self.pool, self.graphs, self.model, self.policy = pool, graphs, model, policy
        self.limit_s = MARGIN * limit_ms / 1e3
        self.prompts: asyncio.Queue[Request] = asyncio.Queue()
        self.batch: list[Request] = []
        self.joined = asyncio.Event()
        self.turn = asyncio.Lock()  # on one stream, prefill and decode take turns
        self.left = 0.0  # of a chunk that steps of decode take with them
        self.taken = asyncio.Event()
        self.gaps_ms: list[float] = []
        self.used: Counter[str] = Counter()  # chunks of prompts, by the plan that they ran with
        self.switches = 0
        self.plan, self.streams = WHOLE, WHOLE.switch(pool)

    def switch(self, plan: Plan) -> None:
        """Ordered on the device behind the work of the plan before, where the two share SMs. The host goes on."""
        if plan != self.plan:
            self.switches += 1
            self.plan, self.streams = plan, plan.switch(self.pool)

    def load(self) -> int:
        return min(max(1, len(self.batch)), BATCHES[-1])

    def choose(self) -> Plan:
        """The plan for the present batch. The one in use is kept where another is hardly better."""
        return self.policy.choose(self.limit_s, self.plan, batch=self.load())

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
            for _ in range(0, request.prompt, self.model.chunk):
                self.switch(self.choose())
                self.used[called(self.plan)] += 1
                load, seen = self.load(), len(self.gaps_ms)
                begin = self.streams["prefill"].record(None, TIMED)
                await self.chunk()
                end = self.streams["prefill"].record(None, TIMED)
                await ended(end)
                if gaps := self.gaps_ms[seen:]:  # what the plan has done under this load
                    self.policy.observe({"batch": load}, self.plan, max(gaps) / 1e3, 1e3 / (end - begin))
            self.emit(request)
            if request.made < request.answer:
                self.batch.append(request)
                self.joined.set()

    async def chunk(self) -> None:
        """A chunk of a prompt: by the steps of decode, a share in each, or by itself."""
        if self.plan.share is not None and self.batch:
            self.left = 1.0
            self.taken.clear()
            await self.taken.wait()
        if self.plan.share is None or not self.batch:
            async with self.exclusive():
                self.model.prefill(self.streams["prefill"])
                await ended(self.streams["prefill"].record())

    async def decode(self) -> None:
        last: Event | None = None
        while True:
            if not self.batch:
                last, self.left = None, 0.0
                self.taken.set()
                self.joined.clear()
                await self.joined.wait()
            async with self.exclusive():
                batch = self.batch[: BATCHES[-1]]
                stream = self.streams["decode"]
                size = next(size for size in BATCHES if size >= len(batch))
                if self.left > 0 and self.plan.share is not None:
                    self.model.together(stream, size, self.plan.share)
                    self.left -= self.plan.share
                else:
                    self.graphs.replay(stream, size)
                end = stream.record(None, TIMED)
                await ended(end)
            if self.left <= 0:
                self.taken.set()
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


async def serve(server: Server, requests: int, seed: int) -> int:
    """Requests of random lengths, each from its own coroutine; returns the number of tokens."""
    lengths = random.Random(seed)
    clients = [client(server, lengths.randrange(1, 2048), lengths.randrange(2, 16)) for _ in range(requests)]
    loops = [asyncio.create_task(loop) for loop in (server.prefill(), server.decode())]
    answers = asyncio.gather(*clients)
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


def served(
    pool: PartitionPool, graphs: GraphSet, model: MadeUpModel, policy: Policy, options: argparse.Namespace
) -> str:
    """Serve all requests by a policy; returns what that was like."""
    server = Server(pool, graphs, model, policy, options.limit)
    with pool.device.create_stream() as stream:
        begin = stream.record(None, TIMED)
        tokens = asyncio.run(serve(server, options.requests, options.seed))
        pool.device.sync()
        seconds = (stream.record(None, TIMED) - begin) / 1e3
    gaps = sorted(server.gaps_ms) or [0.0]
    late = sum(gap > options.limit for gap in gaps)
    return (
        f"{options.requests} requests, {tokens} tokens, {tokens / seconds:.0f} tokens/s; gaps of "
        f"{gaps[len(gaps) // 2]:.1f} ms in the middle and {gaps[-1]:.1f} ms at most, {late} of {len(gaps)} too long; "
        f"{server.switches} switches; chunks of prompts: "
        + ", ".join(f"{count} with {plan}" for plan, count in server.used.items())
    )


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
        trials = [measure(pool, graphs, model, plan, batch) for plan in plans() for batch in BATCHES]
        policy = policy_of(trials, device)
        print(f"{device.name}, limit {options.limit:g} ms between two tokens, of which plans may use {MARGIN:.0%}")
        print(f"  gaps and prefill by batch {'':6}" + "   ".join(f"{batch:>9}{'':17}" for batch in BATCHES).rstrip())
        for plan in policy.plans:
            found = [policy.predict(plan, batch=batch) for batch in BATCHES]
            cells = (f"{1e3 * one.latency_s:6.1f} ms, {one.rate:5.1f} chunks/s" for one in found)
            print(f"  {called(plan):32}" + "   ".join(cells))
        for batch in BATCHES:
            print(f"chosen for a batch of {batch}: {reason(policy, options.limit, batch)}")
        kinds = {"by the policy": plans(), "on plain streams": [STREAMS], "together": TOGETHER}
        for how, allowed in kinds.items():
            only = policy_of([one for one in trials if one.plan in allowed], device)
            print(f"served {how}: {served(pool, graphs, model, only, options)}")


if __name__ == "__main__":
    main()
