"""Proof of isolation: a probe kernel fills contexts, and tells on which SMs, and when, its blocks ran."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import combinations

from cuda_gctx._core.context import Context
from cuda_gctx._core.driver import system
from cuda_gctx._core.lease import capturing_stream
from cuda_gctx._core.probe import probe_blocks_per_sm, run_probe
from cuda_gctx._core.stream import Stream
from cuda_gctx.draw.sm_map import SMMap
from cuda_gctx.draw.table import ranges, table
from cuda_gctx.measure.causes import lack_of_concurrency
from cuda_gctx.partitions.chip import chip_clusters, known_clusters

__all__ = ["ContextProof", "IsolationError", "SharedSMs", "VerifyReport", "verify"]

# Long beside the few microseconds between two launches, short for a person.
SPIN_NS = 1_000_000
# Other work can keep the probe off an SM for a while; an SM that stays unseen is reported.
ROUNDS = 4


@dataclass(frozen=True)
class ContextProof:
    """Where the probe ran in one context: the SMs that it should have, and those that its blocks saw."""

    name: str
    expected: int
    sm_ids: tuple[int, ...]


@dataclass(frozen=True)
class SharedSMs:
    """SMs that the blocks of two contexts both ran on."""

    first: str
    second: str
    sm_ids: tuple[int, ...]


@dataclass(frozen=True)
class VerifyReport:
    """What the probe saw. ``problems`` is empty if every context ran on as many SMs as it has, and on its own alone.

    concurrent: whether all of them ran at the same time, two by two, by the timer of the device; None for a single one.
    cause: if they did not, what fits as the reason.
    outside: SMs of the device that belong to none of the contexts; empty unless they should cover all of it.
    in_use: other layouts of the same pool that had unfinished work meanwhile.
    clusters: the SM ids of each cluster of the chip, for the map; empty where nothing tells.
    """

    device: str
    driver: str
    contexts: tuple[ContextProof, ...]
    overlaps: tuple[SharedSMs, ...]
    outside: tuple[int, ...]
    concurrent: bool | None
    cause: str | None
    in_use: tuple[str, ...] = ()
    clusters: tuple[tuple[int, ...], ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Each thing that is wrong, as a sentence."""
        found = []
        for context in self.contexts:
            seen = len(context.sm_ids)
            if seen > context.expected:
                found.append(f"{context.name} ran on {seen} SMs and should have {context.expected}")
            elif seen < context.expected:
                found.append(
                    f"{context.name} ran on {seen} SMs and should have {context.expected}: the others are not its own, "
                    "or other work kept it off them"
                )
        for shared in self.overlaps:
            found.append(f"{shared.first} and {shared.second} both ran on SM {ranges(shared.sm_ids)}")
        if self.outside:
            found.append(f"SM {ranges(self.outside)} belong to no partition, so that other work there is not fenced in")
        return tuple(found)

    def sm_map(self) -> SMMap:
        """Which SM belongs to whom: ``print()`` it, or take its ``svg()`` or ``html()``."""
        owners = tuple((proof.name, proof.sm_ids) for proof in self.contexts)
        return SMMap(self.device, self.driver, owners, self.clusters, self.outside)

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps({**asdict(self), "problems": self.problems}, indent=2)

    def __str__(self) -> str:
        rows = [(proof.name, proof.expected, len(proof.sm_ids), ranges(proof.sm_ids)) for proof in self.contexts]
        lines = [
            f"{self.device}, driver {self.driver}: {'isolated' if not self.problems else 'NOT isolated'}",
            table(("context", "expected", "seen", "SMs"), rows),
        ]
        if self.concurrent is not None:
            lines.append("all ran at the same time" if self.concurrent else f"they did not run at once: {self.cause}")
        lines += [f"other work was under way in {layout} of the same pool" for layout in self.in_use]
        lines += self.problems
        return "\n".join(lines)


class IsolationError(RuntimeError):
    """A context ran on SMs that it should not have. ``report`` holds what was seen."""

    def __init__(self, report: VerifyReport) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        return "; ".join(self.report.problems)


def _milliseconds(timeout: float) -> int:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds, not {type(timeout).__name__}")
    if not 0 < timeout <= 3600:
        raise ValueError(f"timeout must be more than 0 and at most 3600 seconds, not {timeout}")
    return int(timeout * 1000)


class _Sightings:
    """What several runs of the probe saw of some contexts."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = counts
        self.sms: dict[str, set[int]] = {name: set() for name in counts}
        self.apart = set(combinations(counts, 2))  # pairs that never ran at the same time

    def look(self, streams: Mapping[str, Stream], per_sm: int, timeout_ms: int) -> None:
        """Runs the probe until every context was seen on as many SMs as it has, and all of them at once."""
        for _ in range(ROUNDS):
            blocks = [self.counts[name] * per_sm for name in streams]
            seen = run_probe(list(streams.values()), blocks, SPIN_NS, timeout_ms * 1_000_000)
            times = {}
            for name, ran in zip(streams, seen, strict=True):
                self.sms[name].update(sm for sm, _, _ in ran)
                times[name] = min((start for _, start, _ in ran), default=0), max((end for _, _, end in ran), default=0)
            self.apart = {
                (a, b) for a, b in self.apart if not (times[a][0] < times[b][1] and times[b][0] < times[a][1])
            }
            if not self.apart and all(len(self.sms[name]) >= count for name, count in self.counts.items()):
                return

    def proofs(self) -> tuple[ContextProof, ...]:
        return tuple(ContextProof(name, count, tuple(sorted(self.sms[name]))) for name, count in self.counts.items())


def verify(
    contexts: Mapping[str, Context], *, covers_device: bool = False, in_use: Sequence[str] = (), timeout: float = 10.0
) -> VerifyReport:
    """Fills all contexts of one device with a probe kernel at once, and compares where it ran with what they have.

    covers_device: every SM should belong to one of them. in_use: what else is known to be under way, for the report.
    Raises IsolationError where they differ, RuntimeError if the probe does not finish within `timeout` seconds.
    """
    timeout_ms = _milliseconds(timeout)
    if not contexts:
        raise ValueError("there is no context to verify")
    devices = {context.device for context in contexts.values()}
    if len(devices) > 1:
        raise ValueError("the contexts are on several devices: verify those of one device at a time")
    [device] = devices
    capturing = capturing_stream(device.resources.sm)
    if capturing is not None:
        raise RuntimeError(
            f"{capturing} is capturing a graph, which a launch of the probe could spoil: verify before or after"
        )
    counts = {name: context.sm_count for name, context in contexts.items()}
    with ExitStack() as closing:
        streams = {name: closing.enter_context(context.create_stream()) for name, context in contexts.items()}
        # As many blocks as fill the contexts, so that each SM gets some.
        per_sm = max(1, probe_blocks_per_sm(next(iter(contexts.values()))))
        sightings = _Sightings(counts)
        sightings.look(streams, per_sm, timeout_ms)
        proofs = sightings.proofs()
        outside: tuple[int, ...] = ()
        if covers_device:
            everywhere = _Sightings({"device": device.sm_count})
            everywhere.look({"device": closing.enter_context(device.create_stream())}, per_sm, timeout_ms)
            outside = tuple(sorted(everywhere.sms["device"].difference(*(proof.sm_ids for proof in proofs))))
    overlaps = []
    for first, second in combinations(proofs, 2):
        shared = tuple(sorted(set(first.sm_ids) & set(second.sm_ids)))
        if shared:
            overlaps.append(SharedSMs(first.name, second.name, shared))
    concurrent = not sightings.apart if len(proofs) > 1 else None
    report = VerifyReport(
        device=device.name,
        driver=".".join(map(str, system.driver_version)),
        contexts=proofs,
        overlaps=tuple(overlaps),
        outside=outside,
        concurrent=concurrent,
        cause=lack_of_concurrency(device, len(proofs)) if concurrent is False else None,
        in_use=tuple(in_use),
        # Only the proof of a whole device runs on all of it, and may look at all of it.
        clusters=chip_clusters(device, timeout_ms * 1_000_000) if covers_device else known_clusters(device),
    )
    if report.problems:
        raise IsolationError(report)
    return report
