"""Random programs of partitions, pools and the store, whose answers are compared with the driver's and a model of SMs.

    python -m tests.trust.silent_answers [--programs 200] [--seed 0] [--card]

Each program runs on a simulated card and a driver version of its own, or with --card on the GPU of this machine, whose
driver may keep 4 MiB of each context that a program makes: some 200 MiB for each program. After each step, every open
partition is looked at: a kernel shows its SMs; every handle that it gives away, of its context, its streams and its
resources, is asked again, with raw calls, for what it stands for; and its counts are those that a model gives: a number
of SMs is rounded up to the unit of the device, a share down, None is what is left, no two partitions share an SM, and
together they are the device.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from cuda_gctx import Device, PartitionPool, Partitions, SplitError, system
from cuda_gctx.partitions import with_background
from cuda_software_driver import session

from ..core.test_split_oracle import PROFILES, VERSIONS
from ..core.test_split_raw_values import check_handles, count_of
from ..raw import Probe, Raw

Request = int | float | None
STEPS = 8


class Program:
    """One program; run() returns what is wrong."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.dev, self.raw = Device(0), Raw()
        self.whole = self.dev.resources.sm
        self.total, self.unit = self.whole.sm_count, self.whole.coscheduled_alignment
        self.opened: list[Partitions] = []
        self.wrong: list[str] = []
        self.checked = 0

    def request(self) -> Request:
        kind = self.random.random()
        if kind < 0.5:
            return self.random.randint(1, max(2, self.total // 3))
        return round(self.random.uniform(0.05, 0.5), 2) if kind < 0.8 else None

    def layout(self) -> dict[str, Request]:
        found = {name: self.request() for name in self.random.sample("abcd", self.random.randint(1, 4))}
        rest = [name for name, asked in found.items() if asked is None]
        for name in rest[1:]:  # one partition may have what is left
            found[name] = self.unit
        return found

    def expected(self, asked: Request) -> tuple[int, int]:
        """The least and the most SMs of a request; None is compared by the sum."""
        if asked is None:
            return 1, self.total
        if isinstance(asked, float):
            return self.whole.min_partition_size, max(self.whole.min_partition_size, int(asked * self.total + 1e-6))
        return asked, max(self.whole.min_partition_size, -(-asked // self.unit) * self.unit)

    def check(self, parts: Partitions, layout: dict[str, Request], probe: Probe, is_whole: bool) -> Iterator[str]:
        every = with_background(parts)
        seen: dict[str, set[int]] = {}
        for part in every:
            sms = seen[part.name] = probe.sms(part.context)
            self.checked += 1
            counts = {
                "the probe": len(sms),
                "the context by raw call": count_of(part.context.handle),
                "the context": part.context.sm_count,
                "its resources": part.context.resources.sm.sm_count,
                "a lent stream": part.stream.resources.sm.sm_count,
            }
            if set(counts.values()) != {part.sm_count}:
                yield f"{part.name} has {part.sm_count} SMs, but {counts}"
            for stream in (part.stream, *part.stream_pool(2)):
                if self.raw.context_of_stream(stream.handle) != part.context.handle:
                    yield f"a stream of {part.name} is of another context"
            check_handles(probe, part.context.resources.sm, sms)
        for name, asked in layout.items():
            least, most = self.expected(asked)
            if parts[name].requested != asked:
                yield f"{name} says that {parts[name].requested} was requested instead of {asked}"
            if not least <= parts[name].sm_count <= most:
                yield f"{name} has {parts[name].sm_count} SMs for {asked}: {least} to {most} were possible"
        union = set().union(*seen.values())
        if len(union) != sum(map(len, seen.values())):
            yield f"partitions of {layout} share SMs"
        if is_whole and union != set(range(self.total)):
            yield f"partitions of {layout} have {len(union)} of {self.total} SMs"
        for other in self.opened if not is_whole else ():
            taken = set().union(*(probe.sms(part.context) for part in with_background(other)))
            if taken & union:
                yield f"SMs that are taken were given away as free ones: {sorted(taken & union)}"

    def step(self, pool: PartitionPool, probe: Probe) -> None:
        layout, kind = self.layout(), self.random.random()
        try:
            if kind < 0.35:
                self.wrong += self.check(pool.switch(layout), layout, probe, True)
            elif kind < 0.7 or not self.opened:
                self.opened.append(parts := self.dev.partition(layout))
                self.wrong += self.check(parts, layout, probe, True)
            elif kind < 0.85:
                parts = self.dev.partition(layout, among="free")
                self.wrong += self.check(parts, layout, probe, False)
                self.opened.append(parts)
            else:
                self.opened.pop(self.random.randrange(len(self.opened))).close()
        except SplitError:  # it does not fit
            pass
        except ValueError as error:
            least = self.whole.min_partition_size
            if not any(isinstance(asked, float) and asked * self.total < least for asked in layout.values()):
                self.wrong.append(f"{layout} was refused: {error}")
        if self.random.random() < 0.2:
            system.release_contexts()
        if self.random.random() < 0.3 and pool.layouts:
            with suppress(RuntimeError):  # the current one stays
                pool.drop(self.random.choice(pool.layouts))

    def run(self) -> list[str]:
        with Probe(self.dev) as probe, PartitionPool(self.dev) as pool:
            for _ in range(STEPS):
                self.step(pool, probe)
            for parts in self.opened:
                parts.close()
        system.release_contexts()
        return self.wrong


def run_on_card(seeds: Sequence[int]) -> tuple[int, list[str]]:
    """The same on the GPU of this machine."""
    checked, wrong = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            program = Program(seed)
            wrong += [f"seed {seed}: {one}" for one in program.run()]
            checked += program.checked
            print(f"seed {seed}: {checked} partitions until here, {len(wrong)} wrong answers", flush=True)
    return checked, wrong


def run(seeds: Sequence[int], cards: Sequence[str] = PROFILES) -> tuple[int, list[str]]:
    """How many partitions were looked at, and what was wrong."""
    checked, wrong = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            card, driver = cards[seed % len(cards)], VERSIONS[seed // len(cards) % len(VERSIONS)]
            with session(card, driver=driver):
                program = Program(seed)
                found: list[Any] = program.run()
            checked += program.checked
            wrong += [f"seed {seed}, {card}, driver {driver}: {one}" for one in found]
    return checked, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--card", action="store_true", help="on the GPU of this machine")
    options = parser.parse_args()
    checked, wrong = (run_on_card if options.card else run)(range(options.seed, options.seed + options.programs))
    print("\n".join([*wrong, f"{checked} partitions of {options.programs} programs: {len(wrong)} wrong answers"]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
