"""Public functions read whole numbers, times and bools in the same way, and refuse others with the same words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy
import pytest

from cuda_gctx import (
    Context,
    ContextOptions,
    Device,
    EventOptions,
    Graph,
    Layout,
    PartitionPool,
    PartitionSpec,
    SMResourceOptions,
    Stream,
    StreamOptions,
    Timeline,
    WorkqueueResourceOptions,
    system,
    tune,
)
from cuda_gctx.comm import MixedCommOp, ParallelInfo, expected, local_world
from cuda_gctx.compat import flashinfer, sgl_kernel, torch_green
from cuda_gctx.compat.torch_green import GreenContext, SMPartition
from cuda_gctx.interop.library_sms import cublas_sms
from cuda_gctx.partitions import verify

# ---- what is accepted, and what is said of the rest

HUGE = 10**30


class Kind(NamedTuple):
    """A kind of parameter: how messages describe it, what is refused as another type, and as a value of this type."""

    words: str
    wrong_types: tuple[Any, ...]
    wrong_values: tuple[Any, ...]
    of_numpy: Callable[[Any], Any]


INT = Kind("an int", (True, numpy.True_, 1.5, numpy.float64(2), "x", math.nan, math.inf, 1j), (HUGE, -1), numpy.int64)
SECONDS = Kind(
    "a (positive )?number of seconds",
    (True, numpy.True_, "x", 1j),
    (0, -1, math.nan, math.inf, -math.inf),
    numpy.float32,
)
NUMBER = Kind("a number", (True, numpy.True_, "x", 1j), (math.nan,), numpy.float64)
# A float is a share of the device.
REQUEST = Kind(
    "an int", (True, numpy.True_, "x", 1j), (-1, 1.5, numpy.float64(2), math.nan, math.inf, -math.inf), numpy.int64
)
BOOL = Kind("a bool", (0, 1, numpy.int64(1), 1.5, "x", math.nan, HUGE), (), numpy.bool_)


class Door(NamedTuple):
    """A parameter: how to pass a value (to a function of the `World` and the value), and a value that is accepted.

    wrong_values: if not those of the kind. said: the name in messages, if not that of the parameter. then: the error
    that follows an accepted value, where accepting it does more than this test needs.
    """

    kind: Kind
    good: Any
    call: Callable[[Any, Any], object]
    wrong_values: tuple[Any, ...] | None = None
    said: str | None = None
    then: str = ""


def work(stream: Stream) -> None:
    """What a tuner would measure."""


APART = tune.Plan("partitions", ("a", "b"), Layout(a=32, b=None), {"a": "a", "b": "b"})
NO_DEVICE: Any = "no device"
ENDS = "device must be a Device"


def tuning(name: str) -> Callable[[Any, Any], object]:
    return lambda world, value: tune.overlap(a=work, b=work, device=NO_DEVICE, **{name: value})


def ranked(position: int, make: Callable[..., Any]) -> Callable[[Any, Any], object]:
    """A rank in the world of one node of two ranks, with another number at a position."""
    return lambda world, value: make(*[*TOPOLOGY[:position], value, *TOPOLOGY[position + 1 :]])


def splitting(name: str) -> Callable[[Any, Any], object]:
    def split(world: Any, value: Any) -> None:
        options = {"num_sms": 8, "workqueue_scope": "balanced", name: value}
        for context in GreenContext.split(**options):
            context.close()

    return split


TOPOLOGY: tuple[int, ...] = (1, 2, 1, 2, 0, 1, 2, 1, 1, 1)
NAMES = (
    *("world_rank", "world_size", "local_rank", "local_size", "inter_rank", "inter_size"),
    *("local_tp_size", "local_dp_size", "inter_tp_size", "inter_dp_size"),
)


def graph_of(world: Any) -> Graph:
    with world.stream.capture() as capture:
        pass
    graph: Graph = capture.graph
    return graph


DOORS: dict[str, Door] = {
    # ---- the core
    "ContextOptions(exclusive)": Door(BOOL, True, lambda w, v: ContextOptions([w.dev.resources.sm], exclusive=v)),
    "Context.from_handle(handle)": Door(INT, None, lambda w, v: Context.from_handle(v)),
    "Device(device_id)": Door(INT, 0, lambda w, v: Device(v), ()),
    "Device.partition(exclusive)": Door(BOOL, False, lambda w, v: w.dev.partition(8, exclusive=v).close()),
    "Device.partition(requests)": Door(REQUEST, 8, lambda w, v: w.dev.partition(v).close(), said="partition 0: sms"),
    "Device.partition(named)": Door(REQUEST, 8, lambda w, v: w.dev.partition(a=v).close(), said="partition a: sms"),
    "EventOptions(timing_enabled)": Door(BOOL, True, lambda w, v: EventOptions(timing_enabled=v)),
    "EventOptions(blocking_sync)": Door(BOOL, True, lambda w, v: EventOptions(blocking_sync=v)),
    "Graph.from_handle(handle)": Door(INT, None, lambda w, v: Graph.from_handle(v)),
    "Graph.in_partition(ordered)": Door(BOOL, True, lambda w, v: graph_of(w).in_partition(w.dev, ordered=v).close()),
    "Graph.instantiate(ordered)": Door(BOOL, True, lambda w, v: graph_of(w).instantiate(ordered=v).close()),
    "GraphExec.verify(timeout)": Door(SECONDS, 5, lambda w, v: graph_of(w).in_partition(w.dev).verify(timeout=v)),
    "spin(blocks)": Door(INT, 1, lambda w, v: tune.spin(w.stream, v, 1)),
    "spin(spin_ns)": Door(INT, 1, lambda w, v: tune.spin(w.stream, 1, v)),
    "SMResourceOptions(count)": Door(INT, 8, lambda w, v: SMResourceOptions(v)),
    "SMResourceOptions(coscheduled_sm_count)": Door(INT, 8, lambda w, v: SMResourceOptions(8, coscheduled_sm_count=v)),
    "SMResourceOptions(preferred_coscheduled_sm_count)": Door(
        INT, 8, lambda w, v: SMResourceOptions(8, preferred_coscheduled_sm_count=v)
    ),
    "SMResourceOptions(backfill)": Door(BOOL, True, lambda w, v: SMResourceOptions(8, backfill=v)),
    "SMResourceOptions(locality_domain)": Door(INT, 0, lambda w, v: SMResourceOptions(8, locality_domain=v)),
    "SMResourceOptions(supplemental_sms)": Door(
        BOOL, True, lambda w, v: SMResourceOptions(8, locality_domain=0, supplemental_sms=v)
    ),
    "SMResource.split(options)": Door(INT, 8, lambda w, v: w.dev.resources.sm.split([v]), said="count"),
    "SMResource.split(dry_run)": Door(BOOL, True, lambda w, v: w.dev.resources.sm.split(8, dry_run=v)),
    "WorkqueueResourceOptions(concurrency_limit)": Door(
        INT, 4, lambda w, v: WorkqueueResourceOptions(concurrency_limit=v)
    ),
    "StreamOptions(nonblocking)": Door(BOOL, True, lambda w, v: StreamOptions(nonblocking=v)),
    "StreamOptions(priority)": Door(INT, 0, lambda w, v: StreamOptions(priority=v), (HUGE, -HUGE)),
    "Stream.from_handle(handle)": Door(INT, 1, lambda w, v: Stream.from_handle(v), then="no context is current"),
    # ---- partitions
    "PartitionSpec(sms)": Door(REQUEST, 8, lambda w, v: PartitionSpec(v), said="sms"),
    "PartitionSpec(aligned)": Door(BOOL, True, lambda w, v: PartitionSpec(None, aligned=v)),
    "Layout(requests)": Door(REQUEST, 8, lambda w, v: Layout(v), said="partition 0: sms"),
    "Layout(named)": Door(REQUEST, 8, lambda w, v: Layout(a=v), said="partition a: sms"),
    "Layout.of(requests)": Door(REQUEST, 8, lambda w, v: Layout.of(v), said="partition 0: sms"),
    "Layout.of(named)": Door(REQUEST, 8, lambda w, v: Layout.of(a=v), said="partition a: sms"),
    "Partition.stream_pool(number)": Door(INT, 1, lambda w, v: w.parts.a.stream_pool(v)),
    "Partition.stream_pool(priority)": Door(INT, 0, lambda w, v: w.parts.a.stream_pool(1, v), (HUGE, -HUGE)),
    "Partition.max_blocks(threads)": Door(INT, 128, lambda w, v: w.parts.a.max_blocks(threads=v)),
    "Partition.max_blocks(shared_memory)": Door(
        INT, 0, lambda w, v: w.parts.a.max_blocks(threads=128, shared_memory=v)
    ),
    "Partition.max_cluster_size(threads)": Door(INT, 128, lambda w, v: w.parts.a.max_cluster_size(threads=v)),
    "Partition.max_cluster_size(shared_memory)": Door(
        INT, 0, lambda w, v: w.parts.a.max_cluster_size(threads=128, shared_memory=v)
    ),
    "Partition.max_clusters(cluster_size)": Door(INT, 2, lambda w, v: w.parts.a.max_clusters(v, threads=128)),
    "Partition.max_clusters(threads)": Door(INT, 128, lambda w, v: w.parts.a.max_clusters(2, threads=v)),
    "Partition.max_clusters(shared_memory)": Door(
        INT, 0, lambda w, v: w.parts.a.max_clusters(2, threads=128, shared_memory=v)
    ),
    "Partitions.verify(timeout)": Door(SECONDS, 5, lambda w, v: w.parts.verify(timeout=v)),
    "PartitionPool.prepare(requests)": Door(REQUEST, 8, lambda w, v: w.pool.prepare(v), said="partition 0: sms"),
    "PartitionPool.prepare(named)": Door(REQUEST, 8, lambda w, v: w.pool.prepare(a=v), said="partition a: sms"),
    "PartitionPool.switch(requests)": Door(REQUEST, 8, lambda w, v: w.pool.switch(v), said="partition 0: sms"),
    "PartitionPool.switch(named)": Door(REQUEST, 8, lambda w, v: w.pool.switch(a=v), said="partition a: sms"),
    "PartitionPool(limit)": Door(INT, 8, lambda w, v: PartitionPool(w.pool.device, limit=v), (0, -1)),
    "PartitionPool.drop(requests)": Door(REQUEST, 16, lambda w, v: w.pool.drop(v), said="partition 0: sms"),
    "PartitionPool.drop(named)": Door(REQUEST, 16, lambda w, v: w.pool.drop(a=v), said="partition a: sms"),
    "System.release_contexts(exposed)": Door(BOOL, False, lambda w, v: system.release_contexts(v)),
    "Context.partition(requests)": Door(
        REQUEST, 8, lambda w, v: w.parts.a.context.partition(v).close(), said="partition 0: sms"
    ),
    "verify(covers_device)": Door(BOOL, False, lambda w, v: verify({"a": w.parts.a.context}, covers_device=v)),
    "verify(timeout)": Door(SECONDS, 5, lambda w, v: verify({"a": w.parts.a.context}, timeout=v)),
    # ---- the tuner
    "explain(rounds)": Door(INT, 1, lambda w, v: tune.explain(w.stream, w.stream, rounds=v)),
    "Throughput(weights)": Door(INT, 1, lambda w, v: tune.Throughput(a=v), said="a"),
    "TailLatency(quantile)": Door(NUMBER, 0.5, lambda w, v: tune.TailLatency("a", quantile=v)),
    "TailLatency(rate)": Door(NUMBER, 1.5, lambda w, v: tune.TailLatency("a", rate=v)),
    "TailLatency(others)": Door(NUMBER, 0.5, lambda w, v: tune.TailLatency("a", others=v)),
    "overlap(sizes)": Door(
        INT, None, lambda w, v: tune.overlap(a=work, b=work, device=w.dev, sizes=[v]), (), r"sizes\[0\]"
    ),
    "overlap(budget_s)": Door(SECONDS, 1, tuning("budget_s"), then=ENDS),
    "overlap(seed)": Door(INT, 1, tuning("seed"), (), then=ENDS),
    "Plan(library_sms)": Door(
        BOOL, True, lambda w, v: tune.Plan("partitions", ("a",), Layout(a=8), {"a": "a"}, library_sms=v)
    ),
    "Plan(sm_counts)": Door(
        INT, 8, lambda w, v: tune.Plan("streams", ("a",), sm_counts={"a": v}), (-1, 0), r"sm_counts\.a"
    ),
    "Plan.verify(timeout)": Door(SECONDS, 5, lambda w, v: APART.verify(w.dev, timeout=v)),
    "TailLatency(closed_loop)": Door(BOOL, None, lambda w, v: tune.TailLatency("a", closed_loop=v)),
    "overlap(progress)": Door(BOOL, None, lambda w, v: tune.overlap(a=work, b=work, device=w.dev, progress=v)),
    "Timeline(spans)": Door(INT, 8, lambda w, v: Timeline(w.dev, spans=v)),
    # ---- the drop-ins and libraries
    "get_device_resource(cu_dev)": Door(INT, 0, lambda w, v: flashinfer.get_device_resource(v), ()),
    "get_sm_count_constraint(major)": Door(INT, 9, lambda w, v: flashinfer.get_sm_count_constraint(v, 0), ()),
    "get_sm_count_constraint(minor)": Door(INT, 0, lambda w, v: flashinfer.get_sm_count_constraint(9, v), ()),
    "split_resource(num_groups)": Door(INT, 1, lambda w, v: flashinfer.split_resource(w.sms.resource, v, 8), (-1, 0)),
    "split_resource(min_count)": Door(INT, 8, lambda w, v: flashinfer.split_resource(w.sms.resource, 1, v), (-1,)),
    "split_resource_by_sm_count(cu_dev)": Door(
        INT, 0, lambda w, v: flashinfer.split_resource_by_sm_count(v, w.sms.resource, [8]), ()
    ),
    "split_resource_by_sm_count(sm_counts)": Door(
        INT,
        8,
        lambda w, v: flashinfer.split_resource_by_sm_count(0, w.sms.resource, [v]),
        (-1, 0),
        r"sm_counts\[0\]",
    ),
    "create_green_ctx_streams(cu_dev)": Door(
        INT, 0, lambda w, v: flashinfer.create_green_ctx_streams(v, [w.parts.a.context.resources.sm]), ()
    ),
    "split_device_green_ctx_by_locality_domain(backfill)": Door(
        BOOL,
        True,
        lambda w, v: flashinfer.split_device_green_ctx_by_locality_domain("cuda:0", v),
        then="has 1 locality domain",
    ),
    "split_device_green_ctx(num_groups)": Door(
        INT, 1, lambda w, v: flashinfer.split_device_green_ctx("cuda:0", v, 8), (-1, 0)
    ),
    "split_device_green_ctx(min_count)": Door(
        INT, 8, lambda w, v: flashinfer.split_device_green_ctx("cuda:0", 1, v), (-1,)
    ),
    "split_device_green_ctx_by_sm_count(sm_counts)": Door(
        INT, 8, lambda w, v: flashinfer.split_device_green_ctx_by_sm_count("cuda:0", [v]), (), r"sm_counts\[0\]"
    ),
    "get_sm_available(device_id)": Door(INT, 0, lambda w, v: sgl_kernel.get_sm_available(v), ()),
    "create_greenctx_stream_by_value(SM_a)": Door(
        INT, 8, lambda w, v: sgl_kernel.create_greenctx_stream_by_value(v, 8), ()
    ),
    "create_greenctx_stream_by_value(SM_b)": Door(
        INT, 8, lambda w, v: sgl_kernel.create_greenctx_stream_by_value(8, v), ()
    ),
    "create_greenctx_stream_by_value(device_id)": Door(
        INT, 0, lambda w, v: sgl_kernel.create_greenctx_stream_by_value(8, 8, v), ()
    ),
    "get_num_locality_domains(device_id)": Door(INT, 0, lambda w, v: torch_green.get_num_locality_domains(v), ()),
    "is_localization_supported(device_id)": Door(INT, 0, lambda w, v: torch_green.is_localization_supported(v), ()),
    "SMPartition.from_device(device_id)": Door(INT, 0, lambda w, v: SMPartition.from_device(v), ()),
    "SMPartition.split(num_sms)": Door(INT, 8, lambda w, v: w.sms.split(num_sms=v), (-1,)),
    "SMPartition.split(coscheduled_sm_count)": Door(
        INT, 8, lambda w, v: w.sms.split(num_sms=8, coscheduled_sm_count=v)
    ),
    "SMPartition.split(preferred_coscheduled_sm_count)": Door(
        INT, 8, lambda w, v: w.sms.split(num_sms=8, preferred_coscheduled_sm_count=v)
    ),
    "SMPartition.split(backfill)": Door(BOOL, True, lambda w, v: w.sms.split(num_sms=8, backfill=v)),
    "SMPartition.split(locality_domain_ids)": Door(
        INT, 0, lambda w, v: w.sms.split(num_sms=8, locality_domain_ids=v), (-1,), then="13.4"
    ),
    "GreenContext(num_sms)": Door(INT, 8, lambda w, v: GreenContext(num_sms=v).close(), ()),
    "GreenContext(workqueue_concurrency_limit)": Door(
        INT,
        4,
        lambda w, v: GreenContext(workqueue_scope="balanced", workqueue_concurrency_limit=v).close(),
        said="concurrency_limit",
    ),
    "GreenContext(device_id)": Door(INT, 0, lambda w, v: GreenContext(num_sms=8, device_id=v).close(), ()),
    "GreenContext(exclusive)": Door(BOOL, False, lambda w, v: GreenContext(num_sms=8, exclusive=v).close()),
    "GreenContext.create(num_sms)": Door(INT, 8, lambda w, v: GreenContext.create(v).close(), ()),
    "GreenContext.create(device_id)": Door(INT, 0, lambda w, v: GreenContext.create(8, v).close(), ()),
    "GreenContext.create(workqueue_concurrency_limit)": Door(
        INT,
        4,
        lambda w, v: GreenContext.create(8, workqueue_scope="balanced", workqueue_concurrency_limit=v).close(),
        said="concurrency_limit",
    ),
    "GreenContext.create(exclusive)": Door(BOOL, False, lambda w, v: GreenContext.create(8, exclusive=v).close()),
    "GreenContext.split(num_sms)": Door(INT, 8, splitting("num_sms"), (-1,)),
    "GreenContext.split(coscheduled_sm_count)": Door(INT, 8, splitting("coscheduled_sm_count")),
    "GreenContext.split(preferred_coscheduled_sm_count)": Door(INT, 8, splitting("preferred_coscheduled_sm_count")),
    "GreenContext.split(backfill)": Door(BOOL, True, splitting("backfill")),
    "GreenContext.split(locality_domain_ids)": Door(INT, 0, splitting("locality_domain_ids"), (-1,), then="13.4"),
    "GreenContext.split(workqueue_concurrency_limit)": Door(
        INT, 4, splitting("workqueue_concurrency_limit"), said="concurrency_limit"
    ),
    "GreenContext.split(device_id)": Door(INT, 0, splitting("device_id"), ()),
    "GreenContext.max_workqueue_concurrency(device_id)": Door(
        INT, 0, lambda w, v: GreenContext.max_workqueue_concurrency(v), ()
    ),
    "cublas_sms(handle)": Door(INT, None, lambda w, v: cublas_sms(v, 8, "libnone.so").__enter__(), ()),
    "cublas_sms(count)": Door(INT, None, lambda w, v: cublas_sms(7, v, "libnone.so").__enter__()),
    # ---- comm
    **{
        f"{made}({name})": Door(INT, TOPOLOGY[at], ranked(at, make), (-1,))
        for made, make in {"ParallelInfo": ParallelInfo, "ParallelInfo.of": ParallelInfo.of}.items()
        for at, name in enumerate(NAMES)
    },
    "ParallelInfo.at(world_rank)": Door(INT, 1, lambda w, v: w.info.at(v)),
    "ParallelInfo.rank_of(tp_rank)": Door(INT, 1, lambda w, v: w.info.rank_of(v, 0)),
    "ParallelInfo.rank_of(dp_rank)": Door(INT, 0, lambda w, v: w.info.rank_of(0, v)),
    "ParallelInfo.tp_ranks(dp_rank)": Door(INT, 0, lambda w, v: w.info.tp_ranks(v)),
    "ParallelInfo.dp_ranks(tp_rank)": Door(INT, 0, lambda w, v: w.info.dp_ranks(v)),
    "expected(exchanges)": Door(INT, 1, lambda w, v: expected(w.info, 0, [], v), then="one for each rank, not 0"),
    "expected(root)": Door(
        INT,
        0,
        lambda w, v: expected(w.info, MixedCommOp.BROADCAST, [], root=v),
        then="one for each rank, not 0",
    ),
    "expected(by_nodes)": Door(
        BOOL, True, lambda w, v: expected(w.info, 0, [], by_nodes=v), then="one for each rank, not 0"
    ),
    "local_world(size)": Door(INT, 1, lambda w, v: local_world(v).close(), (-1, 0)),
    "local_world(sms)": Door(INT, 8, lambda w, v: local_world(1, w.dev, sms=v).close(), (-1, 0)),
    "local_world(timeout_s)": Door(SECONDS, 5, lambda w, v: local_world(1, timeout_s=v).close()),
    "LocalRank.handler(nodes)": Door(
        INT, 3, lambda w, v: local_world(2).ranks[0].handler("float16", nodes=v), (-1, 0), then="cannot be divided"
    ),
}


@pytest.fixture
def dev(sim: Any) -> Device:
    """A device with everything that the parameters are about."""
    sim("h200", driver="13.4")
    return Device(0)


@pytest.fixture
def world(torch: Any, dev: Device) -> Iterator[Any]:
    """A device with what the functions above need."""
    with dev.partition(a=16, b=16) as parts, dev.create_stream() as stream, PartitionPool(dev) as pool:
        yield SimpleNamespace(
            dev=dev,
            parts=parts,
            stream=stream,
            pool=pool,
            sms=SMPartition.from_device(),
            info=ParallelInfo.of(*TOPOLOGY),
        )


def problems(world: Any, name: str, door: Door) -> Iterator[str]:
    """What is wrong with a door, in words."""
    said = door.said or name.rpartition("(")[2].rstrip(")")
    wrong_values = door.kind.wrong_values if door.wrong_values is None else door.wrong_values
    refused = [(value, TypeError, type(value).__name__) for value in door.kind.wrong_types]
    refused += [(value, ValueError, re.escape(str(value))) for value in wrong_values]
    for value, kind, given in refused:
        # cuda.core has words of its own for a count that is too small, and programs look for them.
        words = rf"{door.kind.words}\b.*" if kind is TypeError else rf"(?:{door.kind.words}\b|>= \d+|non-negative).*"
        message = rf"{said} must be {words}, not {given}$"
        try:
            door.call(world, value)
        except Exception as error:
            if not isinstance(error, kind) or not re.match(message, str(error)):
                yield f"{name} says of {value!r}: {type(error).__name__}: {error}, not: {kind.__name__}: {message}"
        else:
            yield f"{name} accepts {value!r}"
    for value in (door.good, door.kind.of_numpy(door.good)) if door.good is not None else ():
        try:
            door.call(world, value)
        except Exception as error:
            if not door.then or door.then not in str(error):
                yield f"{name} refuses {value!r}: {type(error).__name__}: {error}"


@pytest.mark.sim_only
@pytest.mark.filterwarnings("ignore::cuda_gctx.ResourceOverlapWarning")
def test_numbers_times_and_bools_are_read_alike_at_every_door(world: Any) -> None:
    wrong = [problem for name, door in DOORS.items() for problem in problems(world, name, door)]
    assert not wrong, "\n".join(wrong)
