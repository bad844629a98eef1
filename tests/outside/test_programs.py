"""Public programs, reduced to their calls: SM counts, SM ids, the order of work, and what is left at the end.

Each is written anew from what the program calls. On the software driver torch is played by a stand-in (see
stand_in_torch.py). What a driver cannot do stops at the documented error, which the test names.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from cuda_gctx import (
    Context,
    ContextOptions,
    Device,
    Event,
    EventOptions,
    FeatureNotSupported,
    Graph,
    ResourceOverlapWarning,
    SMResource,
    SMResourceOptions,
    SplitError,
    Stream,
    StreamOptions,
    WorkqueueResourceOptions,
)
from cuda_gctx.compat import sgl_kernel as spatial
from cuda_gctx.compat.flashinfer import (
    create_green_ctx_streams,
    get_cudevice,
    get_device_resource,
    split_device_green_ctx_by_sm_count,
    split_resource,
    split_resource_by_sm_count,
)
from cuda_gctx.compat.torch_green import GreenContext
from cuda_gctx.tune import spin
from cuda_software_driver import session

from ..common import green, on_another_thread, refusal, sizes
from ..raw import Raw
from ..stand_in_torch import StandInTorch

pytestmark = pytest.mark.sim_only

DRIVERS = ["12.8", "13.0", "13.1", "13.4"]
OLD = ("12.8", "13.0")  # without the structured split and the configuration of workqueues
SMS = 132
KERNEL_NS = 100_000

Machine = Callable[..., Any]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """An H200 with a driver, and torch on it. At the end it has made so many green contexts, and none is alive."""
    with ExitStack() as opened:

        def start(driver: str, *, contexts: int) -> Any:
            machine = opened.enter_context(session("h200", driver=driver))
            torch = StandInTorch()
            torch.machine = machine
            monkeypatch.setitem(sys.modules, "torch", torch)
            opened.callback(end, torch, contexts)
            return torch

        yield start


def end(torch: Any, contexts: int) -> None:
    torch.close()
    gc.collect()
    assert torch.machine.ledger().faults == ()
    assert torch.machine.ledger().green_contexts_made == contexts


def adopted(stream: Any) -> Stream:
    return stream if isinstance(stream, Stream) else Stream(stream)


def counts(streams: Any) -> list[int]:
    return [adopted(stream).resources.sm.sm_count for stream in streams]


def sm_ids(*streams: Any) -> list[set[int]]:
    """The SMs of each stream's context, which a kernel reports."""
    return [set(adopted(stream).context.verify().contexts[0].sm_ids) for stream in streams]


def demand_disjoint(streams: Any) -> None:
    """Each stream works on as many SMs as it has, and on none of another one's."""
    ids = sm_ids(*streams)
    assert [len(found) for found in ids] == counts(streams)
    assert len(set().union(*ids)) == sum(map(len, ids))


@contextmanager
def stamps() -> Iterator[tuple[Callable[[str, Any], None], dict[str, float]]]:
    """A function that lets a stream note the time under a name, and afterwards the times of all names."""
    timing = EventOptions(timing_enabled=True)
    main = Device(0).create_stream()
    begin = main.record(options=timing)
    events: dict[str, Event] = {}

    def stamp(name: str, stream: Any) -> None:
        events[name] = adopted(stream).record(options=timing)

    times: dict[str, float] = {}
    yield stamp, times
    Device(0).sync()
    times.update({name: event - begin for name, event in events.items()})


# SGLang multiplexes prefill and decode: one pair of streams for each division of the SMs, and one without a division.


@pytest.mark.parametrize("driver", DRIVERS)
def test_sglang_groups_of_prefill_and_decode(machine: Machine, driver: str) -> None:
    torch = machine(driver, contexts=12)
    total = spatial.get_sm_available(0)
    assert total == SMS
    divisions = [(total - decode, decode) for decode in (20, 28, 36, 44, 52, 60)]
    plain = torch.cuda.current_stream()
    groups = [(plain, plain), *(spatial.create_greenctx_stream_by_value(a, b, 0) for a, b in divisions)]
    assert [tuple(counts(pair)) for pair in groups[1:]] == divisions
    for prefill, decode in groups[1:]:
        demand_disjoint((prefill, decode))
    # The scheduler changes the group from batch to batch; a decode step waits for the prefill that it continues.
    with stamps() as (stamp, times):
        (prefill, decode), (wider, _) = groups[1], groups[6]
        with torch.cuda.stream(prefill):
            spin(Stream(prefill), SMS, KERNEL_NS)
            stamp("prefill", prefill)
        decode.wait_stream(prefill)
        with torch.cuda.stream(decode):
            stamp("decode", decode)
        wider.wait_stream(decode)
        stamp("next prefill", wider)
    assert times["prefill"] <= times["decode"] <= times["next prefill"]
    # A division that comes again makes nothing.
    assert spatial.create_greenctx_stream_by_value(112, 20, 0) == groups[1]


# TensorRT-LLM overlaps two kinds of kernels: a pair of contexts with n SMs and all others, and a pool of such pairs.


class PairPool:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.pairs: dict[int, tuple[list[Context], list[Stream]]] = {}

    def get(self, count: int) -> list[Stream]:
        if count not in self.pairs:
            groups, _ = self.device.resources.sm.split(SMResourceOptions(count=(count, 0), coscheduled_sm_count=(2, 2)))
            contexts = [self.device.create_context(ContextOptions(resources=[group])) for group in groups]
            streams = [context.create_stream(StreamOptions(nonblocking=True)) for context in contexts]
            assert counts(streams) == [group.sm_count for group in groups]
            self.pairs[count] = contexts, streams
        return self.pairs[count][1]

    def close(self) -> None:
        """Streams before their contexts, the last one first."""
        for contexts, streams in reversed(self.pairs.values()):
            for stream in streams:
                stream.sync()
            for owned in [*reversed(streams), *reversed(contexts)]:
                owned.close()


@pytest.mark.parametrize("driver", DRIVERS)
def test_tensorrt_llm_pool_of_pairs(machine: Machine, driver: str) -> None:
    machine(driver, contexts=4)
    device = Device(0)
    device.set_current()
    pool = PairPool(device)
    first = pool.get(16)
    with pytest.warns(ResourceOverlapWarning):  # pairs take turns, and share SMs
        second = pool.get(64)
    assert pool.get(16) is first
    assert counts(first + second) == [16, 116, 64, 68]
    assert len({stream.context.id for stream in first + second}) == 4
    assert len({stream.handle for stream in first + second}) == 4
    for pair in (first, second):
        demand_disjoint(pair)
    with stamps() as (stamp, times):
        main = device.create_stream()
        for name, stream in zip(("work", "communication"), first, strict=True):
            stream.wait(main.record())
            spin(stream, 16, KERNEL_NS)
            stamp(name, stream)
            main.wait(stream.record())
        stamp("after both", main)
    assert max(times["work"], times["communication"]) <= times["after both"]
    main.close()
    pool.close()


# FlashInfer's driver of kernels for several experts: groups by their structures, a context over each from the driver's
# own calls, and one captured kernel that runs in all of them.


@pytest.mark.parametrize("driver", DRIVERS)
def test_flashinfer_contexts_from_structures_and_one_captured_kernel(machine: Machine, driver: str) -> None:
    machine(driver, contexts=2)
    device = Device(0)
    raw = Raw()
    groups, _ = device.resources.sm.split(SMResourceOptions([64, 8]))
    if driver in OLD:
        # The group of 64 is several structures there, and no single one stands for it.
        assert "pass all of `handles`" in str(refusal(ValueError, lambda: groups[0].handle))
    contexts = [context_from_structures(raw, device, group) for group in groups]
    with ExitStack() as closing:
        streams = []
        for handle, context in contexts:
            closing.callback(raw.call, "cuGreenCtxDestroy", ctypes.c_void_p(handle))
            streams.append(closing.enter_context(context.create_stream()))
        assert counts(streams) == [64, 8]
        demand_disjoint(streams)
        with streams[0].capture() as capture:
            spin(streams[0], SMS, KERNEL_NS)
        with capture.graph as graph:
            kernels = [move(graph, context) for _, context in contexts]
        assert [len(ids) for ids in kernels] == [64, 8]
        assert not kernels[0] & kernels[1]


def context_from_structures(raw: Raw, device: Device, group: SMResource) -> tuple[int, Context]:
    size = 144  # bytes of a CUdevResource
    structures = b"".join(ctypes.string_at(address, size) for address in group.handles)
    assert len(structures) == size * group.unit_count
    description = raw.handle("cuDevResourceGenerateDesc", structures, ctypes.c_uint(group.unit_count))
    handle = raw.handle("cuGreenCtxCreate", ctypes.c_void_p(description), device.device_id, ctypes.c_uint(1))
    return handle, Context.from_handle(raw.handle("cuCtxFromGreenCtx", ctypes.c_void_p(handle)))


def move(graph: Graph, context: Context) -> set[int]:
    """The SMs on which the kernel of a graph runs in a context."""
    with graph.in_partition(context) as moved, context.create_stream() as stream:
        moved.launch(stream)
        stream.sync()
        [kernel] = moved.verify().kernels
        return set(kernel.sm_ids)


# A fork of vLLM serves two models: 40 SMs for the one, all others for the second one, each on a thread of its own.


@pytest.mark.parametrize("driver", DRIVERS)
def test_vllm_fork_two_models(machine: Machine, driver: str) -> None:
    torch = machine(driver, contexts=2)
    cu_dev = get_cudevice(torch.device("cuda:0"))
    whole = get_device_resource(cu_dev)
    assert whole.sm.smCount == SMS
    (small,), rest = split_resource(whole, 1, 40)
    assert [small.sm.smCount, rest.sm.smCount] == [40, 92]
    streams = create_green_ctx_streams(cu_dev, [small, rest])
    del small, rest, whole
    gc.collect()
    assert counts(streams) == [40, 92]
    demand_disjoint(streams)

    def serve(stream: Any) -> list[int]:
        torch.cuda.set_stream(stream)  # for the life of the thread
        for _ in range(3):
            spin(Stream(torch.cuda.current_stream()), SMS, KERNEL_NS)
        Stream(torch.cuda.current_stream()).sync()
        return counts([torch.cuda.current_stream()])

    assert [on_another_thread(lambda stream=stream: serve(stream)) for stream in streams] == [[40], [92]]
    # Its second way, by a list of sizes, splits a remainder again.
    (by_count,), others = split_resource_by_sm_count(cu_dev, get_device_resource(cu_dev), [40])
    assert [by_count.sm.smCount, others.sm.smCount] == [40, 92]


# DynaFlow divides a batch in two, whose stages run in turn on two streams over disjoint SMs.


@pytest.mark.parametrize("driver", DRIVERS)
def test_dynaflow_two_halves_of_a_batch(machine: Machine, driver: str) -> None:
    torch = machine(driver, contexts=2)
    device = torch.device("cuda:0")
    streams, resources = split_device_green_ctx_by_sm_count(device, [48])
    assert [resource.sm.smCount for resource in resources] == counts(streams) == [48, 84]
    demand_disjoint(streams)
    with stamps() as (stamp, times):
        attention, experts = streams
        for half in (0, 1):
            spin(Stream(attention), SMS, KERNEL_NS)
            stamp(f"attention {half}", attention)
            experts.wait_stream(attention)
            spin(Stream(experts), SMS, KERNEL_NS)
            stamp(f"experts {half}", experts)
    assert times["attention 0"] <= times["experts 0"] <= times["experts 1"]
    assert times["attention 0"] <= times["attention 1"] <= times["experts 1"]
    # The split is made for each model that is loaded, and leaks nothing.
    del streams, resources, attention, experts
    gc.collect()
    for _ in range(10):
        again, _ = split_device_green_ctx_by_sm_count(device, [48])
        assert counts(again) == [48, 84]
        del again
        gc.collect()


# A plug-in that moves a cache to storage reserves 8 SMs for it, and lets the worker compute on all others.


@pytest.mark.parametrize("driver", DRIVERS)
def test_plug_in_that_reserves_sms_for_io(machine: Machine, driver: str) -> None:
    torch = machine(driver, contexts=4)
    io = GreenContext.create(num_sms=8, device_id=0)
    # As in torch, 124 SMs are rounded up to 128, of which 4 are the plug-in's; torch gives no warning.
    with pytest.warns(ResourceOverlapWarning):
        compute = GreenContext.create(num_sms=SMS - 8, device_id=0)
    assert counts([io.Stream(), compute.Stream()]) == [8, 128]
    for context in (io, compute):
        context.close()
    # One split gives the SMs that it means.
    io, compute = GreenContext.split(num_sms=(8, 0), coscheduled_sm_count=2, device_id=0)
    worker, mover = compute.Stream(), io.Stream()
    assert counts([mover, worker]) == [8, 124]
    demand_disjoint([mover, worker])
    before = torch.cuda.current_stream()
    torch.cuda.set_stream(worker)
    assert torch.cuda.current_stream() == worker
    with stamps() as (stamp, times):
        spin(Stream(torch.cuda.current_stream()), SMS, KERNEL_NS)
        stamp("computed", torch.cuda.current_stream())
        mover.wait_stream(torch.cuda.current_stream())
        stamp("moved", mover)
    assert times["computed"] <= times["moved"]
    torch.cuda.set_stream(before)
    for context in (io, compute):
        context.close()


# FastVideo decodes frames on a stream of a context, while torch's current stream makes the next ones.


@pytest.mark.parametrize("driver", DRIVERS)
def test_fastvideo_decodes_on_a_stream_of_a_context(machine: Machine, driver: str) -> None:
    torch = machine(driver, contexts=1)
    context = GreenContext.create(num_sms=24)
    stream = context.Stream()
    assert counts([stream]) == [24]
    assert len(sm_ids(stream)[0]) == 24
    main = torch.cuda.current_stream()
    with stamps() as (stamp, times):
        stamp("latents", main)
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            spin(Stream(torch.cuda.current_stream()), 24, KERNEL_NS)
            stamp("frames", torch.cuda.current_stream())
        stamp("next latents", main)
        main.wait_stream(stream)
        stamp("shown", main)
    assert times["latents"] <= times["frames"] <= times["shown"]
    assert times["next latents"] < times["frames"]  # the two run at once
    context.close()
    gc.collect()
    assert adopted(main).is_done


# NVIDIA's sample: it searches a division by dry runs, fills one part with long work, and starts a critical kernel in
# the other one, which ends before the long work.


@pytest.mark.parametrize("driver", DRIVERS)
def test_nvidia_sample_of_a_critical_kernel(machine: Machine, driver: str) -> None:
    machine(driver, contexts=2)
    device = Device(0)
    device.set_current()
    whole = device.resources.sm
    for critical in range(whole.min_partition_size, whole.sm_count, 2):
        try:
            planned = sizes(*whole.split(SMResourceOptions((whole.sm_count - critical, None)), dry_run=True))
        except SplitError:
            continue
        break
    (long, short), remainder = whole.split(SMResourceOptions((whole.sm_count - critical, None)))
    assert sizes([long, short], remainder) == planned
    assert planned == ([112, 16], 4)
    contexts = [green(device, group) for group in (long, short)]
    streams = [context.create_stream() for context in contexts]
    demand_disjoint(streams)
    with stamps() as (stamp, times):
        spin(streams[0], 4 * SMS, 50 * KERNEL_NS)
        stamp("long", streams[0])
        spin(streams[1], 16, KERNEL_NS)
        stamp("critical", streams[1])
    assert times["critical"] < times["long"]
    for owned in [*streams, *contexts]:
        owned.close()


# Aerial gives each channel of a radio cell a context with SMs and hardware queues of its own.


@pytest.mark.parametrize("driver", DRIVERS)
def test_aerial_channels_with_a_workqueue(machine: Machine, driver: str) -> None:
    machine(driver, contexts=0 if driver in OLD else 3)
    device = Device(0)
    channels = {"uplink": 64, "downlink": 40, "control": 16}
    groups, remainder = device.resources.sm.split(SMResourceOptions(list(channels.values())))
    assert sizes(groups, remainder) == ([64, 40, 16], 12)
    if driver in OLD:
        error = refusal(FeatureNotSupported, lambda: device.resources.workqueue)
        assert "13.1" in str(error)
        assert driver in str(error)
        return
    contexts = []
    for name, group in zip(channels, groups, strict=True):
        queues = device.resources.workqueue
        queues.configure(WorkqueueResourceOptions(sharing_scope="green_ctx_balanced", concurrency_limit=2))
        contexts.append(device.create_context(ContextOptions(resources=[group, queues], name=name)))
    assert [context.resources.sm.sm_count for context in contexts] == [64, 40, 16]
    for context in contexts:
        assert context.resources.workqueue.sharing_scope == "green_ctx_balanced"
        assert context.resources.workqueue.concurrency_limit == 2
    streams = [context.create_stream() for context in contexts]
    demand_disjoint(streams)
    # A slot: the channels start together, and the cell waits for all of them.
    start = device.create_event()
    with stamps() as (stamp, times), device.create_stream() as cell:
        cell.record(start)
        for name, stream in zip(channels, streams, strict=True):
            stream.wait(start)
            spin(stream, 16, KERNEL_NS)
            stamp(name, stream)
            cell.wait(stream.record())
        stamp("slot", cell)
    assert max(times[name] for name in channels) <= times["slot"]
    for owned in [start, *streams, *contexts]:
        owned.close()
    assert all(context.is_closed for context in contexts)


# A library of virtual GPUs divides a device into shards of the smallest size, and gives each tenant some of them.


class VirtualGPUs:
    def __init__(self, device: Device) -> None:
        whole = device.resources.sm
        shard = whole.min_partition_size
        self.device = device
        self.free, _ = whole.split(SMResourceOptions([shard] * (whole.sm_count // shard - 1)))
        self.lock = threading.Lock()

    def open(self, shards: int) -> Tenant:
        with self.lock:
            if shards > len(self.free):
                raise RuntimeError(f"{shards} shards, and {len(self.free)} are free")
            taken, self.free = self.free[:shards], self.free[shards:]
        return Tenant(self, taken)


class Tenant:
    def __init__(self, gpus: VirtualGPUs, shards: list[SMResource]) -> None:
        self.gpus, self.shards = gpus, shards
        self.context = gpus.device.create_context(ContextOptions(resources=shards))
        self.stream = self.context.create_stream()

    def close(self) -> None:
        self.stream.close()
        self.context.close()
        with self.gpus.lock:
            self.gpus.free += self.shards


@pytest.mark.parametrize("driver", DRIVERS)
def test_virtual_gpus_by_shards(machine: Machine, driver: str) -> None:
    machine(driver, contexts=4)
    gpus = VirtualGPUs(Device(0))
    shard = gpus.free[0].sm_count
    total = len(gpus.free)
    tenants = [gpus.open(shards) for shards in (1, 3, 4)]
    assert counts(tenant.stream for tenant in tenants) == [shard, 3 * shard, 4 * shard]
    demand_disjoint([tenant.stream for tenant in tenants])
    assert "shards, and" in str(refusal(RuntimeError, lambda: gpus.open(total)))
    # A tenant that leaves gives its shards to the next one, whose SMs are those.
    left = sm_ids(tenants[1].stream)[0]
    tenants.pop(1).close()
    tenants.append(gpus.open(len(gpus.free)))
    assert left <= sm_ids(tenants[-1].stream)[0]
    for tenant in tenants:
        tenant.close()
    assert len(gpus.free) == total


# SGLang's multiplexing with divisions by hand: pairs that fill the device, in pairs of SMs.


@pytest.mark.parametrize("driver", DRIVERS)
def test_sglang_divisions_by_hand_are_exact(machine: Machine, driver: str) -> None:
    divisions = [(66, 66), (100, 32), (90, 42), (74, 34)]
    machine(driver, contexts=2 * len(divisions) + 1)  # one more to split
    for division in divisions:
        streams = spatial.create_greenctx_stream_by_value(*division, 0)
        assert tuple(counts(streams)) == division
        demand_disjoint(streams)


# FlashInfer's layers of experts: tokens are routed on the main stream, two groups of experts work in partitions behind
# an event of it, and the main stream joins both.


@pytest.mark.parametrize("driver", DRIVERS)
def test_flashinfer_experts_fork_into_two_partitions(machine: Machine, driver: str) -> None:
    torch = machine(driver, contexts=2)
    device = get_cudevice(torch.device("cuda:0"))
    groups, _ = split_resource_by_sm_count(device, get_device_resource(device), [64, 32])
    streams = create_green_ctx_streams(device, groups)
    assert counts(streams) == [64, 32]
    demand_disjoint(streams)
    main = Stream(torch.cuda.current_stream())
    with stamps() as (stamp, times):
        spin(main, SMS, KERNEL_NS)
        stamp("routed", main)
        forked = main.record()
        for name, stream in zip(("shared", "routed experts"), map(adopted, streams), strict=True):
            stream.wait(forked)
            spin(stream, SMS, KERNEL_NS)
            stamp(name, stream)
            main.wait(stream.record())
        stamp("joined", main)
    assert times["routed"] <= min(times["shared"], times["routed experts"])
    assert times["joined"] >= max(times["shared"], times["routed experts"])


# TokenWeave: a batch in two halves. The collective of the one runs in a few SMs next to the computation of the other.


@pytest.mark.parametrize("driver", DRIVERS)
def test_tokenweave_collective_next_to_the_other_half(machine: Machine, driver: str) -> None:
    torch = machine(driver, contexts=2)
    streams, _ = split_device_green_ctx_by_sm_count(torch.device("cuda:0"), [16])
    comm, compute = map(adopted, streams)
    assert counts(streams) == [16, SMS - 16]
    demand_disjoint(streams)
    with stamps() as (stamp, times):
        for layer in range(3):
            for half in "ab":
                spin(compute, SMS, KERNEL_NS)
                stamp(f"compute {layer}{half}", compute)
                comm.wait(compute)
                spin(comm, 16, KERNEL_NS)
                stamp(f"comm {layer}{half}", comm)
    # The collective of half a runs while half b is computed.
    assert all(times[f"comm {layer}a"] <= times[f"compute {layer + 1}a"] for layer in range(2))
    assert all(times[f"comm {layer}{half}"] > times[f"compute {layer}{half}"] for layer in range(3) for half in "ab")


# Holoscan: operators have partitions of a pool by name, and all others share a default partition, the last one.


@pytest.mark.parametrize("driver", DRIVERS)
def test_holoscan_pool_with_a_default_partition(machine: Machine, driver: str) -> None:
    machine(driver, contexts=3)
    with Device(0).partition(detector=32, tracker=16, default=None) as parts:
        operators = {
            name: parts[name if name in parts.names else "default"] for name in ("detector", "viewer", "tracker")
        }
        streams = [part.create_stream() for part in operators.values()]
        assert counts(streams) == [32, SMS - 48, 16]
        demand_disjoint(streams)
        for stream in streams:
            stream.close()


# Dr.Jit adopts a context of its host program: it makes the context current for each call, and works on its own stream.


@pytest.mark.parametrize("driver", DRIVERS)
def test_drjit_adopts_a_context(machine: Machine, driver: str) -> None:
    machine(driver, contexts=2)
    raw = Raw()
    with Device(0).partition(render=24) as parts:
        handle = parts.render.context.handle
        raw.call("cuCtxPushCurrent_v2", ctypes.c_void_p(handle))
        stream = raw.handle("cuStreamCreate", ctypes.c_uint(1))
        popped = raw.handle("cuCtxPopCurrent_v2")
        assert popped == handle
        with Stream.from_handle(stream) as adopted_stream:
            assert counts([adopted_stream]) == [24]
            assert adopted_stream.context == parts.render.context
            spin(adopted_stream, 24, KERNEL_NS)
            adopted_stream.sync()
        raw.call("cuStreamDestroy_v2", ctypes.c_void_p(stream))


# nano-vllm's preflight makes the contexts of decode and prefill current, and a second context for the group of decode.


@pytest.mark.parametrize("driver", DRIVERS)
def test_nano_vllm_tries_its_contexts_before_it_serves(machine: Machine, driver: str) -> None:
    machine(driver, contexts=3)
    device = Device(0)
    [group], rest = device.resources.sm.split(SMResourceOptions(count=16))
    contexts = [device.create_context(ContextOptions(resources=[sms])) for sms in (group, rest)]
    with pytest.warns(ResourceOverlapWarning, match="shares SMs") as warned:
        contexts.append(device.create_context(ContextOptions(resources=[group])))
    assert len(warned) == 1
    for context, count in zip(contexts, (16, SMS - 16, 16), strict=True):
        before = device.set_current(context)
        stream = device.create_stream()
        assert counts([context.create_stream()]) == [count]
        assert device.set_current(before) is context
        stream.close()
    decode, prefill, again = (set(context.verify().contexts[0].sm_ids) for context in contexts)
    assert decode == again
    assert not decode & prefill
    for context in contexts:
        context.close()
