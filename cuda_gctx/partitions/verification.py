"""Verification of isolation: a probe kernel fills contexts, and records where and when its blocks ran."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import combinations

from cuda_gctx._core.extension import (
    CapturingError,
    Context,
    Device,
    GraphExec,
    Stream,
    any_has_capture,
    as_bool,
    as_seconds,
    contexts_of_exec,
    probe_blocks_per_sm,
    probe_kernels,
    run_probe,
    system,
)
from cuda_gctx._core.text import ranges, table
from cuda_gctx.partitions.causes import lack_of_concurrency
from cuda_gctx.partitions.chip import chip_clusters, known_clusters
from cuda_gctx.partitions.sm_map import SMMap

__all__ = ["ContextProof", "IsolationError", "KernelProof", "SharedSMs", "VerifyReport", "verify", "verify_graph"]

# Long compared with the few microseconds between two launches, short for a person.
SPIN_NS = 1_000_000
# The same for each kernel of a graph, which may have thousands.
KERNEL_SPIN_NS = 20_000
# Other work can keep the probe off an SM for a while; an SM that stays unseen is reported.
ROUNDS = 4


@dataclass(frozen=True)
class ContextProof:
    """The SMs on which the probe ran in one context: the expected number of SMs, and the SMs that its blocks ran on."""

    name: str
    expected: int
    sm_ids: tuple[int, ...]


@dataclass(frozen=True)
class KernelProof:
    """The SMs on which the probe ran in the place of a kernel of a graph. context: the name of the kernel's context."""

    name: str
    sm_ids: tuple[int, ...]
    context: str = ""


@dataclass(frozen=True)
class SharedSMs:
    """SMs on which blocks of both contexts ran."""

    first: str
    second: str
    sm_ids: tuple[int, ...]


@dataclass(frozen=True)
class VerifyReport:
    """The records of the probe. ``problems`` is empty if each context ran on all of its SMs, and on no others.

    overlaps: SMs on which two contexts ran. over: the contexts that may share SMs with all others, as in an overlay.
    concurrent: whether each pair of contexts ran at the same time, by the timer of the device; None for a single
    context. cause: if they did not, the known cause that fits.
    outside: SMs of the device outside of all contexts; empty unless the contexts should cover the whole device.
    in_use: other layouts of the same pool with unfinished work at that time.
    clusters: the SM ids of each GPC, for the map; empty if unknown.
    kernels: the kernels of a verified graph, in the order of its nodes.
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
    over: tuple[str, ...] = ()
    kernels: tuple[KernelProof, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Each problem, as a sentence."""
        sentences = []
        for context in self.contexts:
            seen = len(context.sm_ids)
            if seen > context.expected:
                sentences.append(f"{context.name} ran on {seen} SMs, but should have {context.expected}")
            elif seen < context.expected:
                sentences.append(
                    f"{context.name} ran on {seen} of its {context.expected} SMs: it does not have the others, or "
                    "other work kept them busy"
                )
        for shared in self.overlaps:
            if not {shared.first, shared.second} & set(self.over):
                sentences.append(f"{shared.first} and {shared.second} both ran on SM {ranges(shared.sm_ids)}")
        sms = {context.name: context.sm_ids for context in self.contexts}
        for kernel in self.kernels:
            if not kernel.sm_ids:
                sentences.append(f"the probe did not run in the place of kernel {kernel.name}")
            elif strange := sorted(set(kernel.sm_ids).difference(sms.get(kernel.context, ()))):
                sentences.append(
                    f"kernel {kernel.name} ran on SM {ranges(strange)}, which are not those of its context"
                )
        if self.outside:
            sentences.append(f"SM {ranges(self.outside)} belong to none of the contexts")
        return tuple(sentences)

    @property
    def shared_on_purpose(self) -> tuple[str, ...]:
        """The intended overlaps, as sentences."""
        return tuple(
            f"{shared.first} and {shared.second} share SM {ranges(shared.sm_ids)}, as requested"
            for shared in self.overlaps
            if {shared.first, shared.second} & set(self.over)
        )

    def sm_map(self) -> SMMap:
        """The SMs of each context: ``print()`` it, or use its ``svg()`` or ``html()``."""
        # An SM has one owner in the map: those that are over others have what these leave.
        below = {sm for proof in self.contexts if proof.name not in self.over for sm in proof.sm_ids}
        owners = tuple(
            (proof.name, tuple(sm for sm in proof.sm_ids if proof.name not in self.over or sm not in below))
            for proof in self.contexts
        )
        return SMMap(self.device, self.driver, owners, self.clusters, self.outside)

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps({**asdict(self), "problems": self.problems}, indent=2)

    def __repr__(self) -> str:
        verdict = self._verdict if not self.problems else "; ".join(self.problems)
        return f"<VerifyReport: {verdict}; {', '.join(proof.name for proof in self.contexts)} on {self.device}>"

    def _repr_html_(self) -> str:
        return self.sm_map().svg()

    def __str__(self) -> str:
        rows = [(proof.name, proof.expected, len(proof.sm_ids), ranges(proof.sm_ids)) for proof in self.contexts]
        lines = [
            f"{self.device}, driver {self.driver}: {self._verdict}",
            table(("context", "expected", "seen", "SMs"), rows),
        ]
        if self.concurrent is not None:
            lines.append(
                "all ran at the same time" if self.concurrent else f"they did not run at the same time: {self.cause}"
            )
        lines += [f"{layout} of the same pool had unfinished work" for layout in self.in_use]
        if self.kernels:
            lines.append(f"{len(self.kernels)} kernels of the graph ran in it")
        lines += self.shared_on_purpose
        lines += self.problems
        return "\n".join(lines)

    @property
    def _verdict(self) -> str:
        if self.problems:
            return "NOT isolated"
        return f"{' and '.join(self.over)} over the others" if self.shared_on_purpose else "isolated"


class IsolationError(RuntimeError):
    """A context did not run on all of its SMs, or ran on others. ``report`` is the VerifyReport."""

    __module__ = "cuda_gctx"

    def __init__(self, report: VerifyReport) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        return "; ".join(self.report.problems)


class _Sightings:
    """The records of several runs of the probe in the same contexts."""

    def __init__(self, counts: Mapping[str, int], over: Sequence[str] = ()) -> None:
        self.counts = counts
        self.sms: dict[str, set[int]] = {name: set() for name in counts}
        # Pairs that never ran at the same time; those that share SMs need not.
        self.apart = {pair for pair in combinations(counts, 2) if not set(pair) & set(over)}

    def look(self, streams: Mapping[str, Stream], per_sm: int, timeout_ns: int) -> None:
        """Run the probe until each context has run on all of its SMs, and each pair of contexts at the same time."""
        for _ in range(ROUNDS):
            blocks = [self.counts[name] * per_sm for name in streams]
            seen = run_probe(list(streams.values()), blocks, SPIN_NS, timeout_ns)
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
    contexts: Mapping[str, Context],
    *,
    covers_device: bool = False,
    over: Sequence[str] = (),
    in_use: Sequence[str] = (),
    timeout: float = 10.0,
) -> VerifyReport:
    """Fill several contexts of one device with a probe kernel at once, and compare the SMs that it ran on with theirs.

    contexts: by the names that the report shows. covers_device: every SM should belong to one of them. over: those that
    may share SMs with the others; the report states this. in_use: other known work, for the report.

    Returns a VerifyReport. Raises IsolationError if they differ, RuntimeError if the probe does not finish within
    `timeout` seconds, and ValueError for contexts of several devices.

    Example:

        from cuda_gctx import Device
        from cuda_gctx.partitions import verify

        with Device().partition(control=16, rest=None) as parts:
            report = verify({part.name: part.context for part in parts})
            print(report.problems, [len(context.sm_ids) for context in report.contexts])  # () [16, 116], on an H200
    """
    timeout_ns = int(as_seconds("timeout", timeout, 0.001, 3600) * 1e9)
    covers_device = as_bool("covers_device", covers_device)
    device = _device_of(contexts, over)
    _refuse_capture_in(contexts.values())
    counts = {name: context.sm_count for name, context in contexts.items()}
    with ExitStack() as closing:
        streams = {name: closing.enter_context(context.create_stream()) for name, context in contexts.items()}
        # As many blocks as fill the contexts, so that each SM gets some.
        per_sm = max(1, probe_blocks_per_sm(next(iter(contexts.values()))))
        sightings = _Sightings(counts, over)
        pairs = len(sightings.apart)
        sightings.look(streams, per_sm, timeout_ns)
        proofs = sightings.proofs()
        outside: tuple[int, ...] = ()
        if covers_device:
            everywhere = _Sightings({"device": device.sm_count})
            everywhere.look({"device": closing.enter_context(device.create_stream())}, per_sm, timeout_ns)
            outside = tuple(sorted(everywhere.sms["device"].difference(*(proof.sm_ids for proof in proofs))))
    concurrent = not sightings.apart if pairs else None
    report = VerifyReport(
        device=device.name,
        driver=".".join(map(str, system.driver_version)),
        contexts=proofs,
        overlaps=_shared_sms(proofs),
        over=tuple(over),
        outside=outside,
        concurrent=concurrent,
        cause=lack_of_concurrency(device, len(proofs)) if concurrent is False else None,
        in_use=tuple(in_use),
        # Only the verification of a whole device may occupy all of it.
        clusters=chip_clusters(device, timeout_ns) if covers_device else known_clusters(device),
    )
    if report.problems:
        raise IsolationError(report)
    return report


def verify_graph(graph: GraphExec, timeout: float = 10.0) -> VerifyReport:
    """Verify the contexts of a graph, and that its kernels run there (see GraphExec.verify)."""
    timeout_ns = int(as_seconds("timeout", timeout, 0.001, 3600) * 1e9)
    contexts: dict[str, Context] = {}
    names: dict[int, str] = {}
    for context in contexts_of_exec(graph):
        name = context.name or "the context"
        names[context.id] = name if name not in contexts else f"{name} (id {context.id})"
        contexts[names[context.id]] = context
    _refuse_capture_in(contexts.values())
    with graph.device.create_stream() as stream:
        kernels = probe_kernels(graph, stream, KERNEL_SPIN_NS, timeout_ns)
    report = verify(contexts, timeout=timeout)
    report = replace(
        report, kernels=tuple(KernelProof(name, sm_ids, names.get(number, "")) for name, number, sm_ids in kernels)
    )
    if report.problems:
        raise IsolationError(report)
    return report


def _refuse_capture_in(contexts: Iterable[Context]) -> None:
    """Raise CapturingError while a stream of one of the contexts is capturing: the probe would be a part of it."""
    for context in contexts:
        if any_has_capture([context]):
            raise CapturingError(
                f"a stream of {context!r} is capturing a graph, and launching the probe could invalidate the capture: "
                "verify before or after it"
            )


def _device_of(contexts: Mapping[str, Context], over: Sequence[str]) -> Device:
    """Check the arguments of verify(); returns the device of the contexts."""
    if not isinstance(contexts, Mapping):
        raise TypeError(
            'contexts must be a mapping of names to contexts, like {"control": context}, '
            f"not {type(contexts).__name__}"
        )
    if not contexts:
        raise ValueError("contexts is empty: pass at least one context to verify")
    for name, context in contexts.items():
        if not isinstance(name, str) or not isinstance(context, Context):
            raise TypeError(
                "contexts must be a mapping of names to contexts, and has "
                f"{type(name).__name__}: {type(context).__name__}; partitions and streams have a .context"
            )
    if unknown := [name for name in over if name not in contexts]:
        raise ValueError(f"over contains {unknown[0]!r}, which is not one of the contexts {', '.join(contexts)}")
    devices = {context.device for context in contexts.values()}
    if len(devices) > 1:
        raise ValueError("the contexts are on several devices: verify those of one device at a time")
    return devices.pop()


def _shared_sms(proofs: Sequence[ContextProof]) -> tuple[SharedSMs, ...]:
    shared = (
        SharedSMs(first.name, second.name, tuple(sorted(set(first.sm_ids) & set(second.sm_ids))))
        for first, second in combinations(proofs, 2)
    )
    return tuple(pair for pair in shared if pair.sm_ids)
