"""Prefill and decode as a small server: a queue of prompts, a batch that decodes, and layouts that follow the load.

Each round of the loop starts the prefill of new prompts and one decode step of the batch at the same time, each in its
partition. A prompt joins the batch when its prefill has finished. The more requests decode, the more SMs decode gets.
The kernels here only spin; yours would be those of a model, on the same streams.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from cuda_gctx import Device, Event, Layout, PartitionPool, tune

US = 1_000
LAYOUTS = {2: Layout(decode=16, prefill=None), 8: Layout(decode=32, prefill=None), 64: Layout(decode=64, prefill=None)}


@dataclass
class Request:
    """A prompt, and the number of tokens that the user waits for."""

    prompt: int
    tokens: int
    made: int = 0


@dataclass
class Server:
    pool: PartitionPool
    waiting: deque[Request]
    prefilling: deque[tuple[Event, list[Request]]] = field(default_factory=deque)
    batch: list[Request] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)
    rounds: Counter[int] = field(default_factory=Counter)

    def layout(self) -> Layout:
        return next(layout for most, layout in LAYOUTS.items() if len(self.batch) <= most)

    def round(self) -> None:
        # Ordered on the device behind the work of the layout before, where the two share SMs. The host goes on.
        parts = self.pool.switch(self.layout())
        self.rounds[parts.decode.sm_count] += 1

        if self.waiting and len(self.prefilling) < 2:
            fresh = [self.waiting.popleft() for _ in range(min(8, len(self.waiting)))]
            blocks = sum(request.prompt for request in fresh) // 32
            tune.spin(parts.prefill.stream, blocks=blocks, spin_ns=400 * US)
            self.prefilling.append((parts.prefill.stream.record(), fresh))
        if self.batch:
            tune.spin(parts.decode.stream, blocks=8 * len(self.batch), spin_ns=50 * US)
            for request in self.batch:
                request.made += 1

        # The host waits for the step only, and takes over what prefill has finished until then.
        parts.decode.stream.sync()
        while self.prefilling and (self.prefilling[0][0].is_done or not self.batch):
            done, fresh = self.prefilling.popleft()
            done.sync()
            self.batch += fresh
        self.finished += [request for request in self.batch if request.made == request.tokens]
        self.batch = [request for request in self.batch if request.made < request.tokens]

    def run(self) -> None:
        while self.waiting or self.prefilling or self.batch:
            self.round()


def main() -> None:
    dev = Device(0)
    prompts = deque(Request(prompt=512 * (1 + n % 4), tokens=12 + 8 * (n % 3)) for n in range(24))
    with PartitionPool(dev) as pool:
        for layout in LAYOUTS.values():
            pool.prepare(layout)  # built before the first request
        server = Server(pool, prompts)
        server.run()
    print(f"{dev.name}: {len(server.finished)} requests, {sum(one.made for one in server.finished)} tokens")
    print(f"decode ran on {', '.join(map(str, sorted(server.rounds)))} SMs, following the load")


if __name__ == "__main__":
    main()
