"""Records what the CUDA driver answers about green contexts on one GPU, as JSON that a test can replay.

    python tests/hardware/record.py --out tests/hardware/h200-driver-13.0.json

Needs cuda-bindings and nothing else. Every section runs in a process of its own under a time limit, so that a crash or
a hang of the driver is an answer like any other. Answers hold no addresses, times or amounts of memory; those stand
under keys named "measured", which a replay does not compare. The same script runs on the software driver.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

FORMAT = 2  # 1 is the recording of 2026-11-20, which had the device, split_by_count and smids alone

# Two kernels, the same for every card: record_smids marks out[%smid], record_blocks writes out[%ctaid.x] = %smid. Both
# then stay on their SM for a bounded number of clock cycles, so that the blocks of a launch spread over the partition.
PTX = """
.version {version}
.target {target}
.address_size 64

.visible .entry record_smids(.param .u64 out, .param .u64 cycles)
{{
  .reg .pred %p;
  .reg .b32 %r<3>;
  .reg .b64 %d<8>;
  ld.param.u64 %d1, [out];
  ld.param.u64 %d2, [cycles];
  cvta.to.global.u64 %d1, %d1;
  mov.u32 %r1, %smid;
  mul.wide.u32 %d3, %r1, 4;
  add.s64 %d1, %d1, %d3;
  mov.u32 %r2, 1;
  st.global.u32 [%d1], %r2;
  mov.u64 %d4, %clock64;
wait:
  mov.u64 %d5, %clock64;
  sub.s64 %d6, %d5, %d4;
  setp.lt.u64 %p, %d6, %d2;
  @%p bra wait;
  ret;
}}

.visible .entry record_blocks(.param .u64 out, .param .u64 cycles)
{{
  .reg .pred %p;
  .reg .b32 %r<3>;
  .reg .b64 %d<8>;
  ld.param.u64 %d1, [out];
  ld.param.u64 %d2, [cycles];
  cvta.to.global.u64 %d1, %d1;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %smid;
  mul.wide.u32 %d3, %r1, 4;
  add.s64 %d1, %d1, %d3;
  st.global.u32 [%d1], %r2;
  mov.u64 %d4, %clock64;
wait:
  mov.u64 %d5, %clock64;
  sub.s64 %d6, %d5, %d4;
  setp.lt.u64 %p, %d6, %d2;
  @%p bra wait;
  ret;
}}
"""

SPIN_CYCLES = 200_000  # about 100 us at 1.9 GHz: far longer than it takes to hand out the blocks of one launch
THREADS = 1024  # at most two such blocks fit on one SM
WORDS = 8192

Code = int | str  # a CUresult, or "absent", or "raises ..."


class Driver:
    """The driver through cuda.bindings: every call gives (code, value), whatever goes wrong."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.module: Any = driver
        self.absent: dict[str, str] = {}

    def call(self, name: str, *arguments: Any) -> tuple[Code, Any]:
        function = getattr(self.module, name, None)
        if function is None:
            self.absent[name] = "not in this cuda-bindings"
            return "absent", None
        try:
            code, *values = function(*arguments)
            code = int(code)
        except Exception as error:
            if "not found" in str(error) or isinstance(error, NotImplementedError):
                self.absent[name] = f"{type(error).__name__}: {error}"
                return "absent", None
            return f"raises {type(error).__name__}: {error}", None
        if code != 0:
            return code, None
        return code, values[0] if len(values) == 1 else tuple(values)

    def code(self, name: str, *arguments: Any) -> Code:
        return self.call(name, *arguments)[0]

    def must(self, name: str, *arguments: Any) -> Any:
        code, value = self.call(name, *arguments)
        if code != 0:
            raise RuntimeError(f"{name} answered {code}")
        return value

    def enum(self, kind: str, value: int) -> Any:
        """The value as the enum of the bindings, or as the bare number where these bindings do not know it."""
        try:
            return getattr(self.module, kind)(value)
        except (AttributeError, ValueError):
            return value


SM, WORKQUEUE_CONFIG, WORKQUEUE = 1, 1000, 10000
STREAM_NON_BLOCKING = 1
CREATE_DEFAULT_STREAM = 1
EVENT_DISABLE_TIMING = 2
CLUSTER_DIMENSION = 4
NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
CAPTURE_MODES = {"global": 0, "thread_local": 1, "relaxed": 2}


class Refused(Exception):
    """The driver refused one of the steps that make a green context."""

    def __init__(self, step: str, code: Code) -> None:
        super().__init__(f"{step} answered {code}")
        self.answer = {"refused": step, "code": code}


class Green:
    """A green context over some resources, with one stream; closed at the end of a with block."""

    def __init__(self, gpu: Gpu, resources: Sequence[Any]) -> None:
        self.gpu = gpu
        self.stream = self.ctx = self.handle = None
        driver = gpu.driver
        code, descriptor = driver.call("cuDevResourceGenerateDesc", list(resources), len(resources))
        if code != 0:
            raise Refused("cuDevResourceGenerateDesc", code)
        code, self.handle = driver.call("cuGreenCtxCreate", descriptor, gpu.device, CREATE_DEFAULT_STREAM)
        if code != 0:
            raise Refused("cuGreenCtxCreate", code)
        self.ctx = driver.must("cuCtxFromGreenCtx", self.handle)
        self.stream = self.new_stream()

    def new_stream(self, priority: int = 0) -> Any:
        return self.gpu.driver.must("cuGreenCtxStreamCreate", self.handle, STREAM_NON_BLOCKING, priority)

    def __enter__(self) -> Green:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        driver = self.gpu.driver
        driver.call("cuCtxSetCurrent", self.gpu.primary)
        if self.stream is not None:
            driver.call("cuStreamDestroy", self.stream)
            self.stream = None
        if self.handle is not None:
            driver.call("cuGreenCtxDestroy", self.handle)
            self.handle = None


class Gpu:
    """One device with its primary context current, and what the sections ask of it."""

    def __init__(self, ordinal: int, quick: bool) -> None:
        self.quick = quick
        self.driver = driver = Driver()
        driver.must("cuInit", 0)
        self.version: int = driver.must("cuDriverGetVersion")
        self.device = driver.must("cuDeviceGet", ordinal)
        self.primary = driver.must("cuDevicePrimaryCtxRetain", self.device)
        driver.must("cuCtxSetCurrent", self.primary)
        self.cc = (self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR"))
        self.whole = driver.must("cuDeviceGetDevResource", self.device, self.resource_type(SM))
        self.sm_count: int = self.whole.sm.smCount
        self._kernels: dict[str, Any] | None = None
        self._out: Any = None
        self._keep: list[Any] = []

    def attribute(self, name: str) -> Any:
        attribute = getattr(self.driver.module.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_" + name, None)
        if attribute is None:
            return "absent"
        code, value = self.driver.call("cuDeviceGetAttribute", attribute, self.device)
        return value if code == 0 else {"code": code}

    def resource_type(self, value: int) -> Any:
        return self.driver.enum("CUdevResourceType", value)

    def split(self, resource: Any, minimum: int, flags: int, asked: int) -> tuple[Code, list[Any], Any]:
        code, value = self.driver.call("cuDevSmResourceSplitByCount", asked, resource, flags, minimum)
        if code != 0:
            return code, [], None
        groups, returned, remainder = value
        return code, list(groups)[:returned], remainder

    def split_row(self, resource: Any, minimum: int, flags: int, asked: int) -> Any:
        """[groups returned, SMs in each, SMs in the remainder], or the code where it failed."""
        code, groups, remainder = self.split(resource, minimum, flags, asked)
        if code != 0:
            return code
        sizes = sorted({group.sm.smCount for group in groups})
        return [len(groups), sizes[0] if len(sizes) == 1 else sizes, count_of(remainder)]

    def groups(self, minimum: int, flags: int = 0, asked: int | None = None, resource: Any = None) -> list[Any]:
        code, groups, _ = self.split(resource or self.whole, minimum, flags, asked or self.sm_count)
        if code != 0 or not groups:
            raise Refused(f"cuDevSmResourceSplitByCount(minCount={minimum}, flags={flags})", code)
        return groups

    def remainder(self, minimum: int, flags: int = 0, asked: int | None = None, resource: Any = None) -> Any:
        code, _, remainder = self.split(resource or self.whole, minimum, flags, asked or self.sm_count)
        if code != 0 or count_of(remainder) == 0:
            raise Refused(f"the remainder of cuDevSmResourceSplitByCount(minCount={minimum}, flags={flags})", code)
        return remainder

    # Kernels

    def kernel(self, name: str) -> Any:
        """A kernel as a function handle that is good in every context of the device (a CUkernel)."""
        if self._kernels is None:
            self._kernels = self._load()
        return self._kernels[name]

    def _load(self) -> dict[str, Any]:
        driver = self.driver
        errors = []
        versions = [("7.8", "sm_90"), ("7.0", "sm_70")] if self.cc >= (9, 0) else [("7.0", "sm_70"), ("6.0", "sm_60")]
        for version, target in versions:
            image = ctypes.create_string_buffer(PTX.format(version=version, target=target).encode())
            self._keep.append(image)
            code, library = driver.call("cuLibraryLoadData", ctypes.addressof(image), None, None, 0, None, None, 0)
            if code == 0:
                break
            errors.append(f"cuLibraryLoadData for {target} answered {code}")
        else:
            raise RuntimeError("; ".join(errors))
        kernels = {}
        for name in ("record_smids", "record_blocks"):
            kernel = driver.must("cuLibraryGetKernel", library, name.encode())
            kernels[name] = driver.module.CUfunction(int(kernel))
            if name == "record_blocks" and self.cc >= (9, 0):
                attribute = driver.enum("CUfunction_attribute", NON_PORTABLE_CLUSTER_SIZE_ALLOWED)
                driver.call("cuKernelSetAttribute", attribute, 1, kernel, self.device)
        return kernels

    @property
    def out(self) -> Any:
        if self._out is None:
            self._out = self.driver.must("cuMemAlloc", WORDS * 4)
        return self._out

    def preload(self) -> None:
        """Loads the kernels and allocates their output while a good context is current, for a launch without one."""
        self.kernel("record_smids")
        self.arguments(0)

    def arguments(self, cycles: int) -> int:
        """The kernels' arguments as the address of an array of pointers, kept alive for the life of the process."""
        values = (ctypes.c_uint64 * 2)(int(self.out), cycles)
        pointers = (ctypes.c_void_p * 2)(ctypes.addressof(values), ctypes.addressof(values) + 8)
        self._keep.append((values, pointers))
        return ctypes.addressof(pointers)

    def clear(self, stream: Any) -> None:
        self.driver.must("cuMemsetD32Async", self.out, 0, WORDS, stream)

    def launch(self, stream: Any, blocks: int, cycles: int = SPIN_CYCLES) -> Code:
        kernel, arguments = self.kernel("record_smids"), self.arguments(cycles)
        return self.driver.code("cuLaunchKernel", kernel, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments, 0)

    def read(self, words: int = WORDS) -> list[int]:
        host = (ctypes.c_uint32 * words)()
        self.driver.must("cuMemcpyDtoH", ctypes.addressof(host), self.out, words * 4)
        return list(host)

    def marked(self) -> list[int]:
        return [smid for smid, mark in enumerate(self.read()) if mark]

    def smids_on(self, stream: Any, ctx: Any, blocks: int) -> Any:
        """The SMs on which a kernel of so many blocks runs, on that stream with that context current."""
        driver = self.driver
        driver.must("cuCtxSetCurrent", ctx)
        try:
            self.clear(stream)
            code = self.launch(stream, blocks)
            if code != 0:
                return {"refused": "cuLaunchKernel", "code": code}
            driver.must("cuStreamSynchronize", stream)
        finally:
            driver.call("cuCtxSetCurrent", self.primary)
        return self.marked()

    def smids(self, green: Green) -> Any:
        size = green_count(green)
        return self.smids_on(green.stream, green.ctx, 4 * (size if isinstance(size, int) and size else self.sm_count))

    def smids_of(self, resources: Sequence[Any]) -> Any:
        """The SMs that a kernel sees in a context over these resources, or what refused to make one."""
        try:
            with Green(self, resources) as green:
                return self.smids(green)
        except Refused as refused:
            return refused.answer


def count_of(resource: Any) -> int:
    """SMs of a resource; 0 for one that came back INVALID, whose fields mean nothing."""
    return resource.sm.smCount if int(resource.type) == SM else 0


def green_count(green: Green) -> Any:
    code, resource = green.gpu.driver.call("cuGreenCtxGetDevResource", green.handle, green.gpu.resource_type(SM))
    return count_of(resource) if code == 0 else {"code": code}


def fields(resource: Any) -> Any:
    """The fields of an SM resource that the bindings know; [type] alone for another type."""
    if int(resource.type) != SM:
        return {"type": int(resource.type)}
    names = ("smCount", "minSmPartitionSize", "smCoscheduledAlignment")
    return {name: getattr(resource.sm, name) for name in names}


def queried(gpu: Gpu, name: str, handle: Any, kind: int = SM) -> Any:
    code, resource = gpu.driver.call(name, handle, gpu.resource_type(kind))
    return fields(resource) if code == 0 else {"code": code}


class Note:
    """The answers of a section as they come in, written out before the next is asked for: a crash leaves them."""

    def __init__(self, path: Path | None) -> None:
        self.answers: dict[str, Any] = {}
        self._path = path

    def __call__(self, name: str, ask: Callable[[], Any]) -> Any:
        self.answers[name] = "no answer"
        self.save()
        try:
            self.answers[name] = ask()
        except Refused as refused:
            self.answers[name] = refused.answer
        except Exception as error:  # an answer of its own: the next question is still worth asking
            self.answers[name] = {"raised": f"{type(error).__name__}: {error}"}
        self.save()
        return self.answers[name]

    def save(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps({"answers": self.answers}))


Section = Callable[[Gpu, Note], Any]


# Splitting


def record_device(gpu: Gpu, note: Note) -> Any:
    name = gpu.driver.must("cuDeviceGetName", 256, gpu.device)
    priorities = gpu.driver.call("cuCtxGetStreamPriorityRange")
    attributes = (
        "MULTIPROCESSOR_COUNT",
        "MAX_THREADS_PER_MULTIPROCESSOR",
        "MAX_BLOCKS_PER_MULTIPROCESSOR",
        "MAX_THREADS_PER_BLOCK",
        "WARP_SIZE",
        "COOPERATIVE_LAUNCH",
        "CLUSTER_LAUNCH",
        "INTEGRATED",
        "COMPUTE_MODE",
        "ASYNC_ENGINE_COUNT",
        "STREAM_PRIORITIES_SUPPORTED",
        "MPS_ENABLED",
    )
    return {
        "name": bytes(name).split(b"\0")[0].decode(),
        "compute_capability": list(gpu.cc),
        "driver_version": gpu.version,
        "sm": fields(gpu.whole),
        "context_sm": {"cuCtxGetDevResource of the primary context": queried(gpu, "cuCtxGetDevResource", gpu.primary)},
        "stream_priorities": list(priorities[1]) if priorities[0] == 0 else {"code": priorities[0]},
        "attributes": {attribute: gpu.attribute(attribute) for attribute in attributes},
    }


def record_split_by_count(gpu: Gpu, note: Note) -> Any:
    """A row: [minCount, {asked: [groups, SMs in each, SMs in the remainder]}], or the code that they all gave."""
    asked = sorted({1, 2, 3, 4, 7, 16, 64, gpu.sm_count})
    answers: dict[str, Any] = {}
    for flags in range(4):
        rows: list[Any] = []
        for minimum in range(gpu.sm_count + 2):
            row = {str(number): gpu.split_row(gpu.whole, minimum, flags, number) for number in asked}
            codes = list(row.values())
            same = not isinstance(codes[0], list) and all(code == codes[0] for code in codes)
            rows.append([minimum, codes[0] if same else row])
        answers[f"flags={flags}"] = rows
    return answers


def record_split_count_only(gpu: Gpu, note: Note) -> Any:
    """[minCount, groups that the driver would make], or [minCount, {"code": n}]: the call without a result array."""
    answers: dict[str, Any] = {}
    for flags in range(4):
        rows: list[Any] = []
        for minimum in range(gpu.sm_count + 2):
            code, value = gpu.driver.call("cuDevSmResourceSplitByCount", 0, gpu.whole, flags, minimum)
            rows.append([minimum, value[1] if code == 0 else {"code": code}])
        answers[f"flags={flags}"] = rows
    return answers


SMIDS_OF = {0: (8, 16, 24, 32, 40, 48, 56, 64, 72, 96, 120, 128), 1: (2, 4, 10, 16, 64), 2: (8, 16, 32, 64, 128)}


def record_smids(gpu: Gpu, note: Note) -> Any:
    """A row: [minCount, [SM ids of each group], SM ids of the remainder], or [minCount, code]."""
    answers: dict[str, Any] = {"whole": gpu.smids_on(0, gpu.primary, 4 * gpu.sm_count)}
    for flags, minimums in SMIDS_OF.items():
        rows: list[Any] = []
        for minimum in minimums:
            code, groups, remainder = gpu.split(gpu.whole, minimum, flags, gpu.sm_count)
            if code != 0:
                rows.append([minimum, code])
                continue
            if gpu.quick:
                groups = groups[:4]
            seen = [gpu.smids_of([group]) for group in groups]
            rows.append([minimum, seen, gpu.smids_of([remainder]) if count_of(remainder) else []])
        answers[f"flags={flags}"] = rows
    return answers


# Layout


def launch_config(gpu: Gpu, stream: Any, blocks: int, threads: int, cluster: int) -> Any:
    """A launch in clusters of that size; 0 leaves the attribute out."""
    module = gpu.driver.module
    config = module.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = 0
    config.hStream = module.CUstream(int(stream))
    if cluster:
        attribute = module.CUlaunchAttribute()
        attribute.id = gpu.driver.enum("CUlaunchAttributeID", CLUSTER_DIMENSION)
        attribute.value.clusterDim.x = cluster
        attribute.value.clusterDim.y = 1
        attribute.value.clusterDim.z = 1
        config.attrs = [attribute]
        config.numAttrs = 1
    return config


def clusters_seen(gpu: Gpu, stream: Any, cluster: int, threads: int, blocks_about: int) -> tuple[Code, list[list[int]]]:
    """The SM ids of every cluster of one launch."""
    blocks = max(1, blocks_about // cluster) * cluster
    config = launch_config(gpu, stream, blocks, threads, cluster)
    gpu.clear(stream)
    kernel = gpu.kernel("record_blocks")
    code = gpu.driver.code("cuLaunchKernelEx", config, kernel, gpu.arguments(SPIN_CYCLES // 4), 0)
    if code != 0:
        return code, []
    gpu.driver.must("cuStreamSynchronize", stream)
    smids = gpu.read(blocks)
    return code, [smids[first : first + cluster] for first in range(0, blocks, cluster)]


def joined(sets: Iterable[Iterable[int]]) -> list[list[int]]:
    """The connected components of sets that share members, each sorted, in the order of their lowest member."""
    parent: dict[int, int] = {}

    def root(member: int) -> int:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for members in sets:
        first, *rest = members
        parent.setdefault(first, first)
        for member in rest:
            parent.setdefault(member, member)
            parent[root(member)] = root(first)
    components: dict[int, list[int]] = {}
    for member in sorted(parent):
        components.setdefault(root(member), []).append(member)
    return sorted(components.values())


def record_layout(gpu: Gpu, note: Note) -> Any:
    if gpu.cc < (9, 0):
        return {
            "how": "no thread-block clusters below compute capability 9.0: nothing says which cluster an SM sits in"
        }
    stream = gpu.driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    codes: dict[str, Code] = {}
    together: list[list[int]] = []
    pairs: set[tuple[int, ...]] = set()
    for cluster in (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16):
        for launch in range(6 if gpu.quick else 20):
            # Grids of different sizes begin at different places, so that the SMs at the edge of a cluster are used too.
            blocks = (1 + launch % 4) * gpu.sm_count
            threads = THREADS if launch % 2 == 0 else 512
            code, seen = clusters_seen(gpu, stream, cluster, threads, blocks)
            codes[str(cluster)] = code
            if code != 0:
                break
            together += seen
            if cluster == 2:
                pairs.update(tuple(sorted(set(members))) for members in seen if len(set(members)) == 2)
    gpu.driver.call("cuStreamDestroy", stream)
    components = joined(together)
    return {
        "how": "the blocks of one thread-block cluster run inside one GPC: SM ids that met in a cluster, joined over"
        " many launches of clusters of 2 to 16, are one GPC; GPCs in the order of their lowest SM id",
        "clusters_launched": codes,
        "sms_per_gpc": [len(component) for component in components],
        "gpcs": components,
        "sms_never_seen": sorted(set(range(gpu.sm_count)) - {smid for component in components for smid in component}),
        "measured": {"pairs_seen_in_clusters_of_2": [list(pair) for pair in sorted(pairs)]},
    }


# Splits of what a context holds


def parents(gpu: Gpu) -> dict[str, Callable[[], list[Any]]]:
    """The partitions that the later sections look at, by name; each makes its resources when called."""
    table: dict[str, Callable[[], list[Any]]] = {"whole": lambda: [gpu.whole]}
    for size, flags in ((8, 0), (16, 0), (32, 0), (64, 0), (120, 0), (128, 0), (64, 2), (10, 1), (64, 1)):
        table[f"{size} flags={flags}"] = lambda size=size, flags=flags: gpu.groups(size, flags)[:1]
    table["rest of one 8"] = lambda: [gpu.remainder(8, 0, 1)]
    table["groups 0,3,7 of 8"] = lambda: [gpu.groups(8)[index] for index in (0, 3, 7)]
    table["rest of all 8"] = lambda: [gpu.remainder(8)]
    return table


def record_two_step(gpu: Gpu, note: Note) -> Any:
    """Splits of what a green context's query returns. A row: [minCount, [groups, SMs in each, remainder]] or a code."""

    def of_parent(resources: list[Any]) -> Any:
        with Green(gpu, resources) as green:
            answer: dict[str, Any] = {
                "cuGreenCtxGetDevResource": queried(gpu, "cuGreenCtxGetDevResource", green.handle),
                "cuCtxGetDevResource": queried(gpu, "cuCtxGetDevResource", green.ctx),
                "smids": gpu.smids(green),
            }
            code, held = gpu.driver.call("cuGreenCtxGetDevResource", green.handle, gpu.resource_type(SM))
            if code != 0:
                return answer
            size = count_of(held)
            for flags in range(3):
                rows = [[least, gpu.split_row(held, least, flags, size)] for least in range(2, size + 1)]
                answer[f"split flags={flags}"] = rows
            for least, flags in ((8, 0), (16, 0), (2, 1), (8, 2)):
                code, groups, remainder = gpu.split(held, least, flags, size)
                if code == 0:
                    inner = [gpu.smids_of([group]) for group in groups[: 2 if gpu.quick else 6]]
                    rest = gpu.smids_of([remainder]) if count_of(remainder) else []
                    answer[f"smids of min={least} flags={flags}"] = [inner, rest]
            return answer

    for name, resources in parents(gpu).items():
        note(name, lambda resources=resources: of_parent(resources()))
    return note.answers


# Descriptors


def record_descriptors(gpu: Gpu, note: Note) -> Any:
    """What may stand in one descriptor: the context's resource as queried, and the SM ids that a kernel sees in it."""
    eights, again = gpu.groups(8), gpu.groups(8)
    sixteens = gpu.groups(16)
    rest = gpu.remainder(8)

    def with_remainder(minimum: int, asked: int) -> list[Any]:
        code, groups, remainder = gpu.split(gpu.whole, minimum, 0, asked)
        if code != 0:
            raise Refused("cuDevSmResourceSplitByCount", code)
        return [*groups, remainder]

    cases: dict[str, Callable[[], list[Any]]] = {
        "device": lambda: [gpu.whole],
        "device twice": lambda: [gpu.whole, gpu.whole],
        "one group": lambda: [eights[0]],
        "two groups": lambda: [eights[0], eights[1]],
        "two groups, higher first": lambda: [eights[1], eights[0]],
        "groups 0, 3 and 7": lambda: [eights[0], eights[3], eights[7]],
        "all groups": lambda: eights,
        "all groups and the remainder": lambda: [*eights, rest],
        "a group and its remainder": lambda: [eights[0], rest],
        "remainder first, then a group": lambda: [rest, eights[0]],
        "the remainder": lambda: [rest],
        "the remainder twice": lambda: [rest, rest],
        "the same group twice": lambda: [eights[0], eights[0]],
        "the same group of two equal splits": lambda: [eights[0], again[0]],
        "different groups of two equal splits": lambda: [eights[0], again[1]],
        "8 and an overlapping 16 of another split": lambda: [eights[0], sixteens[0]],
        "8 and a disjoint 16 of another split": lambda: [eights[0], sixteens[2]],
        "8 and the last 16 of another split": lambda: [eights[0], sixteens[-1]],
        "group of 8 and the device": lambda: [eights[0], gpu.whole],
        "8 of flags 0 and 8 of flags 2": lambda: [eights[0], gpu.groups(8, 2)[1]],
        "8 of flags 0 and 2 of flags 1": lambda: [eights[0], gpu.groups(2, 1)[-1]],
        "two of flags 1": lambda: gpu.groups(2, 1)[:2],
        "two of flags 1, apart": lambda: [gpu.groups(2, 1)[index] for index in (0, 5)],
        "one of 8 asked once and its remainder": lambda: with_remainder(8, 1),
        "groups of 64 and their remainder": lambda: with_remainder(64, gpu.sm_count),
        "an INVALID resource": lambda: [gpu.driver.module.CUdevResource()],
        "a group and an INVALID resource": lambda: [eights[0], gpu.driver.module.CUdevResource()],
        "a remainder of no SMs": lambda: with_remainder(gpu.sm_count, 1)[-1:],
        "nothing": list,
    }

    def try_one(make: Callable[[], list[Any]]) -> Any:
        with Green(gpu, make()) as green:
            return {
                "sm": queried(gpu, "cuGreenCtxGetDevResource", green.handle),
                "ctx_sm": queried(gpu, "cuCtxGetDevResource", green.ctx),
                "smids": gpu.smids(green),
            }

    for name, make in cases.items():
        note(name, lambda make=make: try_one(make))

    def composed_of_query() -> Any:
        """A group of an inner split together with one of the outer split, and two inner groups."""
        with Green(gpu, [eights[0], eights[1]]) as outer:
            held = gpu.driver.must("cuGreenCtxGetDevResource", outer.handle, gpu.resource_type(SM))
            inner = gpu.groups(8, 0, 2, held)
            return {
                "two inner groups": gpu.smids_of(inner),
                "an inner and an outer group": gpu.smids_of([inner[0], eights[5]]),
                "what the query returned": gpu.smids_of([held]),
                "what the query returned, twice": gpu.smids_of([held, held]),
            }

    def two_live() -> Any:
        """Two contexts over the same group at once: what each of them sees."""
        with Green(gpu, [eights[0]]) as first, Green(gpu, [eights[0]]) as second:
            return {"first": gpu.smids(first), "second": gpu.smids(second)}

    def descriptor_twice() -> Any:
        driver = gpu.driver
        descriptor = driver.must("cuDevResourceGenerateDesc", [eights[0]], 1)
        created = [driver.call("cuGreenCtxCreate", descriptor, gpu.device, CREATE_DEFAULT_STREAM) for _ in range(2)]
        codes = [code for code, _ in created]
        for code, handle in created:
            if code == 0:
                driver.call("cuGreenCtxDestroy", handle)
        codes.append(driver.code("cuGreenCtxCreate", descriptor, gpu.device, CREATE_DEFAULT_STREAM))
        return codes

    note("groups of what a context holds", composed_of_query)
    note("two live contexts over one group", two_live)
    note("one descriptor for two contexts, then after both are destroyed", descriptor_twice)
    return note.answers


# Misuse and lifetime: every item is a process of its own


def first_group(gpu: Gpu) -> Green:
    return Green(gpu, gpu.groups(8)[:1])


def who(gpu: Gpu, ctx: Any, **known: Any) -> str:
    """The name of a context handle instead of its address."""
    value = int(ctx) if ctx is not None else 0
    if value == 0:
        return "none"
    if value == int(gpu.primary):
        return "primary"
    return next((name for name, handle in known.items() if int(handle) == value), "another")


def current(gpu: Gpu, **known: Any) -> Any:
    code, ctx = gpu.driver.call("cuCtxGetCurrent")
    return who(gpu, ctx, **known) if code == 0 else {"code": code}


def misuse_resplit(gpu: Gpu, note: Note) -> Any:
    """A group or a remainder given straight back to the split."""
    code, groups, remainder = gpu.split(gpu.whole, 64, 0, 64)
    if code != 0 or not groups:
        return {"code": code}
    for minimum, flags in ((8, 0), (16, 0), (64, 0), (2, 1), (8, 2)):
        note(f"group of 64, min={minimum} flags={flags}", lambda m=minimum, f=flags: gpu.split_row(groups[0], m, f, 4))
        if count_of(remainder):
            note(
                f"remainder, min={minimum} flags={flags}", lambda m=minimum, f=flags: gpu.split_row(remainder, m, f, 4)
            )
    note("remainder of one 8", lambda: gpu.split_row(gpu.remainder(8, 0, 1), 8, 0, 4))
    note("INVALID resource", lambda: gpu.split_row(gpu.driver.module.CUdevResource(), 8, 0, 4))
    note("flags 4", lambda: gpu.split_row(gpu.whole, 8, 4, 4))
    note("flags 8", lambda: gpu.split_row(gpu.whole, 8, 8, 4))
    note("equal calls give equal bytes", lambda: raw(gpu.groups(8)[0]) == raw(gpu.groups(8)[0]))
    note("device query gives equal bytes", lambda: raw(gpu.whole) == raw(device_resource(gpu)))
    note("group of another query's split gives equal bytes", lambda: same_split_of_two_queries(gpu))
    return note.answers


def raw(resource: Any) -> bytes:
    return ctypes.string_at(int(resource.getPtr()), 144)


def device_resource(gpu: Gpu) -> Any:
    return gpu.driver.must("cuDeviceGetDevResource", gpu.device, gpu.resource_type(SM))


def same_split_of_two_queries(gpu: Gpu) -> bool:
    one = gpu.groups(8, resource=device_resource(gpu))[0]
    other = gpu.groups(8, resource=device_resource(gpu))[0]
    return raw(one) == raw(other)


def misuse_destroy_while_current(gpu: Gpu, note: Note) -> Any:
    driver, green = gpu.driver, first_group(gpu)
    note("set current", lambda: driver.code("cuCtxSetCurrent", green.ctx))
    note("destroy the green context", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    note("current after it", lambda: current(gpu, destroyed=green.ctx))
    note("cuCtxSynchronize", lambda: driver.code("cuCtxSynchronize"))
    note("cuCtxGetDevice", lambda: driver.code("cuCtxGetDevice"))
    note("cuCtxGetFlags", lambda: driver.code("cuCtxGetFlags"))
    note("cuStreamCreate", lambda: driver.code("cuStreamCreate", STREAM_NON_BLOCKING))
    note("cuMemAlloc", lambda: driver.code("cuMemAlloc", 256))
    note("cuEventCreate", lambda: driver.code("cuEventCreate", EVENT_DISABLE_TIMING))
    note("pop", lambda: driver.code("cuCtxPopCurrent"))
    note("current after the pop", lambda: current(gpu, destroyed=green.ctx))
    note("set the primary current", lambda: driver.code("cuCtxSetCurrent", gpu.primary))
    note("memory works again", lambda: driver.code("cuMemAlloc", 256))
    return note.answers


def misuse_push_destroyed(gpu: Gpu, note: Note) -> Any:
    driver, green = gpu.driver, first_group(gpu)
    driver.must("cuStreamDestroy", green.stream)
    driver.must("cuGreenCtxDestroy", green.handle)
    gpu.preload()
    note("push the destroyed context", lambda: driver.code("cuCtxPushCurrent", green.ctx))
    note("current after it", lambda: current(gpu, destroyed=green.ctx))
    note("cuCtxGetDevResource of it", lambda: queried(gpu, "cuCtxGetDevResource", green.ctx))
    note("cuCtxSynchronize", lambda: driver.code("cuCtxSynchronize"))
    note("cuStreamCreate", lambda: driver.code("cuStreamCreate", STREAM_NON_BLOCKING))
    note("cuMemAlloc", lambda: driver.code("cuMemAlloc", 256))
    note("launch on the NULL stream", lambda: gpu.launch(0, 1, 1000))
    note("pop", lambda: driver.code("cuCtxPopCurrent"))
    note("current after the pop", lambda: current(gpu, destroyed=green.ctx))
    note("set the destroyed context current", lambda: driver.code("cuCtxSetCurrent", green.ctx))
    note("current after that", lambda: current(gpu, destroyed=green.ctx))
    return note.answers


def misuse_query_destroyed(gpu: Gpu, note: Note) -> Any:
    driver, green = gpu.driver, first_group(gpu)
    event = driver.must("cuEventCreate", EVENT_DISABLE_TIMING)
    driver.must("cuStreamDestroy", green.stream)
    driver.must("cuGreenCtxDestroy", green.handle)
    note("cuCtxGetDevResource", lambda: queried(gpu, "cuCtxGetDevResource", green.ctx))
    note("cuCtxGetId", lambda: driver.code("cuCtxGetId", green.ctx))
    note("cuCtxGetApiVersion", lambda: driver.code("cuCtxGetApiVersion", green.ctx))
    note("cuCtxRecordEvent", lambda: driver.code("cuCtxRecordEvent", green.ctx, event))
    note("cuCtxWaitEvent", lambda: driver.code("cuCtxWaitEvent", green.ctx, event))
    note("cuGreenCtxGetDevResource", lambda: queried(gpu, "cuGreenCtxGetDevResource", green.handle))
    note("cuGreenCtxGetId", lambda: driver.code("cuGreenCtxGetId", green.handle))
    note("cuCtxFromGreenCtx", lambda: driver.code("cuCtxFromGreenCtx", green.handle))
    note("cuGreenCtxRecordEvent", lambda: driver.code("cuGreenCtxRecordEvent", green.handle, event))
    note("cuGreenCtxStreamCreate", lambda: driver.code("cuGreenCtxStreamCreate", green.handle, STREAM_NON_BLOCKING, 0))
    return note.answers


def misuse_destroy_twice(gpu: Gpu, note: Note) -> Any:
    driver, green = gpu.driver, first_group(gpu)
    driver.must("cuStreamDestroy", green.stream)
    note("first", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    note("second", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    note("a context made after it", lambda: gpu.smids_of(gpu.groups(8)[:1]))
    return note.answers


def misuse_ctx_destroy(gpu: Gpu, note: Note) -> Any:
    """cuCtxDestroy on the CUcontext of a green context, which the headers forbid."""
    driver, green = gpu.driver, first_group(gpu)
    note("cuCtxDestroy of its CUcontext", lambda: driver.code("cuCtxDestroy", green.ctx))
    note("the green context afterwards", lambda: queried(gpu, "cuGreenCtxGetDevResource", green.handle))
    note("cuGreenCtxDestroy afterwards", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    return note.answers


def after_context_is_gone(gpu: Gpu, note: Note, ask: Sequence[tuple[str, Callable[[Any, Any], Any]]]) -> Any:
    driver, green = gpu.driver, first_group(gpu)
    event = driver.must("cuEventCreate", EVENT_DISABLE_TIMING)
    note("use before", lambda: driver.code("cuStreamSynchronize", green.stream))
    note("destroy the green context", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    for name, question in ask:
        note(name, lambda question=question: question(green.stream, event))
    return note.answers


def misuse_stream_after_context(gpu: Gpu, note: Note) -> Any:
    driver = gpu.driver
    one_argument = (
        "cuStreamQuery",
        "cuStreamSynchronize",
        "cuStreamGetPriority",
        "cuStreamGetFlags",
        "cuStreamGetId",
        "cuStreamGetDevice",
        "cuStreamGetCtx",
        "cuStreamGetCtx_v2",
        "cuStreamGetGreenCtx",
        "cuStreamIsCapturing",
    )
    ask: list[tuple[str, Callable[[Any, Any], Any]]] = [
        (name, lambda stream, event, name=name: driver.code(name, stream)) for name in one_argument
    ]
    ask += [
        ("cuStreamGetDevResource", lambda stream, event: queried(gpu, "cuStreamGetDevResource", stream)),
        ("cuEventRecord on it", lambda stream, event: driver.code("cuEventRecord", event, stream)),
        ("cuStreamWaitEvent on it", lambda stream, event: driver.code("cuStreamWaitEvent", stream, event, 0)),
        ("launch on it", lambda stream, event: gpu.launch(stream, 1, 1000)),
        ("begin capture", lambda stream, event: driver.code("cuStreamBeginCapture", stream, capture(gpu, "relaxed"))),
        ("cuStreamDestroy", lambda stream, event: driver.code("cuStreamDestroy", stream)),
        ("cuEventDestroy", lambda stream, event: driver.code("cuEventDestroy", event)),
    ]
    return after_context_is_gone(gpu, note, ask)


def misuse_pushed_stream_after_context(gpu: Gpu, note: Note) -> Any:
    """A stream by cuStreamCreate under the pushed context, and an event recorded on it, after the context goes."""
    driver, green = gpu.driver, first_group(gpu)
    driver.must("cuCtxPushCurrent", green.ctx)
    stream = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    event = driver.must("cuEventCreate", EVENT_DISABLE_TIMING)
    driver.must("cuEventRecord", event, stream)
    driver.must("cuStreamSynchronize", stream)
    driver.must("cuCtxPopCurrent")
    note("destroy the green context", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    note("cuEventQuery", lambda: driver.code("cuEventQuery", event))
    note("cuEventSynchronize", lambda: driver.code("cuEventSynchronize", event))
    note("a primary stream waits for the event", lambda: driver.code("cuStreamWaitEvent", 0, event, 0))
    note("cuStreamQuery", lambda: driver.code("cuStreamQuery", stream))
    note("cuStreamDestroy", lambda: driver.code("cuStreamDestroy", stream))
    note("cuEventRecord on the primary's NULL stream", lambda: driver.code("cuEventRecord", event, 0))
    note("cuEventDestroy", lambda: driver.code("cuEventDestroy", event))
    return note.answers


def misuse_destroy_with_work(gpu: Gpu, note: Note) -> Any:
    """Destroying a context, or a stream, while a kernel of about half a millisecond is still running on it."""
    driver, green = gpu.driver, first_group(gpu)
    note("launch", lambda: gpu.smids(green))
    note("launch a long one", lambda: gpu.launch(green.stream, 8, 2_000_000))
    note("destroy the stream", lambda: driver.code("cuStreamDestroy", green.stream))
    other = green.new_stream()
    note("launch on another", lambda: gpu.launch(other, 8, 2_000_000))
    note("destroy the context", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    note("the primary context afterwards", lambda: driver.code("cuCtxSynchronize"))
    return note.answers


def misuse_arguments(gpu: Gpu, note: Note) -> Any:
    driver = gpu.driver
    descriptor = driver.must("cuDevResourceGenerateDesc", gpu.groups(8)[:1], 1)
    for flags in (0, 1, 2, 3):
        note(f"cuGreenCtxCreate flags={flags}", lambda f=flags: create_and_drop(gpu, descriptor, f))
    green = first_group(gpu)
    for flags in (0, 1, 2):
        note(
            f"cuGreenCtxStreamCreate flags={flags}",
            lambda f=flags: driver.code("cuGreenCtxStreamCreate", green.handle, f, 0),
        )
    for priority in (-100, -6, -5, -3, -1, 0, 1, 7):
        note(f"cuGreenCtxStreamCreate priority={priority}", lambda p=priority: priority_of(gpu, green, p))
    driver.must("cuCtxPushCurrent", green.ctx)
    for flags in (0, 1):
        note(f"cuStreamCreate flags={flags} under the pushed context", lambda f=flags: driver.code("cuStreamCreate", f))
    for priority in (-100, -5, 0, 7):
        note(
            f"cuStreamCreateWithPriority priority={priority} under the pushed context",
            lambda p=priority: pushed_priority_of(gpu, p),
        )
    note("priority range under the pushed context", lambda: driver.call("cuCtxGetStreamPriorityRange"))
    driver.must("cuCtxPopCurrent")
    note("flags of a stream", lambda: driver.call("cuStreamGetFlags", green.stream))
    for kind in (0, SM, WORKQUEUE_CONFIG, WORKQUEUE):
        note(
            f"cuDeviceGetDevResource type={kind}", lambda k=kind: queried(gpu, "cuDeviceGetDevResource", gpu.device, k)
        )
    for kind in (0, WORKQUEUE_CONFIG, WORKQUEUE):
        note(
            f"cuGreenCtxGetDevResource type={kind}",
            lambda k=kind: queried(gpu, "cuGreenCtxGetDevResource", green.handle, k),
        )
        note(f"cuCtxGetDevResource type={kind}", lambda k=kind: queried(gpu, "cuCtxGetDevResource", green.ctx, k))
    return note.answers


def create_and_drop(gpu: Gpu, descriptor: Any, flags: int) -> Code:
    code, handle = gpu.driver.call("cuGreenCtxCreate", descriptor, gpu.device, flags)
    if code == 0:
        gpu.driver.call("cuGreenCtxDestroy", handle)
    return code


def priority_of(gpu: Gpu, green: Green, priority: int) -> Any:
    code, stream = gpu.driver.call("cuGreenCtxStreamCreate", green.handle, STREAM_NON_BLOCKING, priority)
    return list(gpu.driver.call("cuStreamGetPriority", stream)) if code == 0 else {"code": code}


def pushed_priority_of(gpu: Gpu, priority: int) -> Any:
    code, stream = gpu.driver.call("cuStreamCreateWithPriority", STREAM_NON_BLOCKING, priority)
    return list(gpu.driver.call("cuStreamGetPriority", stream)) if code == 0 else {"code": code}


def misuse_nulls(gpu: Gpu, note: Note) -> Any:
    driver, module = gpu.driver, gpu.driver.module
    green, event = first_group(gpu), gpu.driver.must("cuEventCreate", EVENT_DISABLE_TIMING)
    null_green, null_ctx = module.CUgreenCtx(0), module.CUcontext(0)
    note("cuCtxGetDevResource(NULL) with the primary current", lambda: queried(gpu, "cuCtxGetDevResource", null_ctx))
    driver.must("cuCtxPushCurrent", green.ctx)
    note(
        "cuCtxGetDevResource(NULL) with the green context current",
        lambda: queried(gpu, "cuCtxGetDevResource", null_ctx),
    )
    driver.must("cuCtxPopCurrent")
    note("split of NULL", lambda: gpu.driver.code("cuDevSmResourceSplitByCount", 1, None, 0, 8))
    note("descriptor of no resources", lambda: driver.code("cuDevResourceGenerateDesc", [], 0))
    note(
        "create from a NULL descriptor",
        lambda: driver.code("cuGreenCtxCreate", module.CUdevResourceDesc(0), gpu.device, 1),
    )
    note("cuCtxRecordEvent(NULL)", lambda: driver.code("cuCtxRecordEvent", null_ctx, event))
    note("cuCtxWaitEvent(NULL)", lambda: driver.code("cuCtxWaitEvent", null_ctx, event))
    note(
        "cuGreenCtxRecordEvent, NULL event",
        lambda: driver.code("cuGreenCtxRecordEvent", green.handle, module.CUevent(0)),
    )
    note("cuGreenCtxGetDevResource(NULL)", lambda: queried(gpu, "cuGreenCtxGetDevResource", null_green))
    note("cuCtxFromGreenCtx(NULL)", lambda: driver.code("cuCtxFromGreenCtx", null_green))
    note("cuGreenCtxGetId(NULL)", lambda: driver.code("cuGreenCtxGetId", null_green))
    note(
        "cuGreenCtxStreamCreate(NULL)",
        lambda: driver.code("cuGreenCtxStreamCreate", null_green, STREAM_NON_BLOCKING, 0),
    )
    note("cuGreenCtxRecordEvent(NULL)", lambda: driver.code("cuGreenCtxRecordEvent", null_green, event))
    note("cuGreenCtxDestroy(NULL)", lambda: driver.code("cuGreenCtxDestroy", null_green))
    return note.answers


def misuse_no_current_context(gpu: Gpu, note: Note) -> Any:
    """Which of the calls need a current context."""
    driver = gpu.driver
    group = gpu.groups(8)[:1]
    gpu.preload()
    driver.must("cuCtxSetCurrent", gpu.driver.module.CUcontext(0))
    note("current", lambda: current(gpu))
    note("device resource", lambda: queried(gpu, "cuDeviceGetDevResource", gpu.device))
    note("split", lambda: gpu.split_row(gpu.whole, 8, 0, 1))
    green = None
    try:
        green = Green(gpu, group)
    except (Refused, RuntimeError) as error:
        note.answers["create"] = str(error)
    note("current after a create", lambda: current(gpu))
    if green is not None:
        note("cuGreenCtxGetDevResource", lambda: queried(gpu, "cuGreenCtxGetDevResource", green.handle))
        note("cuStreamSynchronize", lambda: driver.code("cuStreamSynchronize", green.stream))
        note("cuStreamGetGreenCtx", lambda: driver.code("cuStreamGetGreenCtx", green.stream))
        note("launch on its stream", lambda: gpu.launch(green.stream, 1, 1000))
        note("cuEventCreate", lambda: driver.code("cuEventCreate", EVENT_DISABLE_TIMING))
        note("cuStreamGetCtx of the NULL stream", lambda: driver.code("cuStreamGetCtx", 0))
        note("cuStreamGetGreenCtx of the NULL stream", lambda: driver.code("cuStreamGetGreenCtx", 0))
        note("cuStreamDestroy", lambda: driver.code("cuStreamDestroy", green.stream))
        note("cuGreenCtxDestroy", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    return note.answers


def misuse_primary_released(gpu: Gpu, note: Note) -> Any:
    """Creation retains the primary context: it stays active when everybody else has let it go."""
    driver = gpu.driver
    green = first_group(gpu)
    active = lambda: list(driver.call("cuDevicePrimaryCtxGetState", gpu.device)[1])  # noqa: E731
    note("active [flags, active] with the green context", active)
    note("release", lambda: driver.code("cuDevicePrimaryCtxRelease", gpu.device))
    note("active after it", active)
    note("cuGreenCtxGetDevResource", lambda: queried(gpu, "cuGreenCtxGetDevResource", green.handle))
    note("cuStreamSynchronize", lambda: driver.code("cuStreamSynchronize", green.stream))
    note("cuStreamDestroy", lambda: driver.code("cuStreamDestroy", green.stream))
    note("cuGreenCtxDestroy", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    note("active after the destroy", active)
    return note.answers


def misuse_inner_after_outer(gpu: Gpu, note: Note) -> Any:
    """Groups split from a context's resource, used after that context is gone."""
    driver, outer = gpu.driver, Green(gpu, gpu.groups(16)[:1])
    held = driver.must("cuGreenCtxGetDevResource", outer.handle, gpu.resource_type(SM))
    inner = gpu.groups(8, 0, 2, held)
    outer.close()
    note("an inner group", lambda: gpu.smids_of(inner[:1]))
    note("split of the query's result", lambda: gpu.split_row(held, 8, 0, 2))
    note("the query's result", lambda: gpu.smids_of([held]))
    return note.answers


def misuse_edited(gpu: Gpu, note: Note) -> Any:
    """Resources whose public fields somebody changed: whether the driver notices."""
    group = gpu.groups(16)[0]
    group.sm.smCount = 8
    note("smCount 16 changed to 8, as a descriptor", lambda: gpu.smids_of([group]))
    whole = device_resource(gpu)
    whole.sm.smCount = 64
    note("device changed to 64, split by 8", lambda: gpu.split_row(whole, 8, 0, gpu.sm_count))
    note("device changed to 64, split by 120", lambda: gpu.split_row(whole, 120, 0, gpu.sm_count))
    note("device changed to 64, as a descriptor", lambda: gpu.smids_of([whole]))
    return note.answers


def misuse_threads(gpu: Gpu, note: Note) -> Any:
    """One green context current to two threads at once."""
    driver, green = gpu.driver, first_group(gpu)
    note("this thread", lambda: driver.code("cuCtxSetCurrent", green.ctx))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        note("another thread", lambda: pool.submit(driver.code, "cuCtxSetCurrent", green.ctx).result())
        note("launch from another thread", lambda: pool.submit(gpu.launch, green.stream, 1, 1000).result())
        note("launch from this thread", lambda: gpu.launch(green.stream, 1, 1000))
        note("cuCtxSynchronize here", lambda: driver.code("cuCtxSynchronize"))
        note("cuCtxSynchronize there", lambda: pool.submit(driver.code, "cuCtxSynchronize").result())
    return note.answers


# Identity


def record_identity(gpu: Gpu, note: Note) -> Any:
    driver, module = gpu.driver, gpu.driver.module
    green, second = first_group(gpu), Green(gpu, gpu.groups(8)[1:2])
    primary_stream = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    driver.must("cuCtxPushCurrent", green.ctx)
    pushed_stream = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    driver.must("cuCtxPopCurrent")
    contexts = {"green": green.ctx, "second": second.ctx}
    greens = {"green": green.handle, "second": second.handle}

    def green_name(handle: Any) -> str:
        value = int(handle) if handle is not None else 0
        if value == 0:
            return "none"
        return next((name for name, known in greens.items() if int(known) == value), "another")

    def of_stream(stream: Any) -> Any:
        answer: dict[str, Any] = {}
        code, handle = driver.call("cuStreamGetGreenCtx", stream)
        answer["cuStreamGetGreenCtx"] = green_name(handle) if code == 0 else code
        code, ctx = driver.call("cuStreamGetCtx", stream)
        answer["cuStreamGetCtx"] = who(gpu, ctx, **contexts) if code == 0 else code
        code, both = driver.call("cuStreamGetCtx_v2", stream)
        answer["cuStreamGetCtx_v2"] = [who(gpu, both[0], **contexts), green_name(both[1])] if code == 0 else code
        answer["cuStreamGetDevResource"] = queried(gpu, "cuStreamGetDevResource", stream)
        answer["cuStreamGetPriority"] = list(driver.call("cuStreamGetPriority", stream))
        answer["cuStreamGetFlags"] = list(driver.call("cuStreamGetFlags", stream))
        answer["cuStreamGetDevice"] = driver.code("cuStreamGetDevice", stream)
        return answer

    streams = {
        "NULL stream": module.CUstream(0),
        "legacy stream": module.CUstream(1),
        "per-thread stream": module.CUstream(2),
        "stream of the primary": primary_stream,
        "stream of green": green.stream,
        "stream of second": second.stream,
        "stream by cuStreamCreate under green": pushed_stream,
    }
    for name, ctx in (("primary", gpu.primary), ("green", green.ctx), ("no context", module.CUcontext(0))):
        driver.must("cuCtxSetCurrent", ctx)
        note(f"{name} current", lambda: current(gpu, **contexts))
        for stream_name, stream in streams.items():
            note(f"{name} current: {stream_name}", lambda stream=stream: of_stream(stream))
        note(f"{name} current: cuCtxGetDevice", lambda: driver.code("cuCtxGetDevice"))
        note(f"{name} current: cuCtxGetFlags", lambda: list(driver.call("cuCtxGetFlags")))
        note(f"{name} current: MULTIPROCESSOR_COUNT", lambda: gpu.attribute("MULTIPROCESSOR_COUNT"))
        note(f"{name} current: cuCtxGetId(NULL) works", lambda: driver.code("cuCtxGetId", module.CUcontext(0)))
        note(f"{name} current: cuCtxSynchronize", lambda: driver.code("cuCtxSynchronize"))
    driver.must("cuCtxSetCurrent", gpu.primary)
    note("cuCtxGetApiVersion: primary", lambda: list(driver.call("cuCtxGetApiVersion", gpu.primary)))
    note("cuCtxGetApiVersion: green", lambda: list(driver.call("cuCtxGetApiVersion", green.ctx)))
    note(
        "cuCtxFromGreenCtx is the same twice",
        lambda: (
            int(driver.must("cuCtxFromGreenCtx", green.handle)) == int(driver.must("cuCtxFromGreenCtx", green.handle))
        ),
    )
    note("the CUcontext is the CUgreenCtx's address", lambda: int(green.ctx) == int(green.handle))
    note("the CUcontext is the primary", lambda: int(green.ctx) == int(gpu.primary))

    def ids() -> Any:
        answers = {
            "cuCtxGetId primary": driver.call("cuCtxGetId", gpu.primary),
            "cuCtxGetId green": driver.call("cuCtxGetId", green.ctx),
            "cuCtxGetId second": driver.call("cuCtxGetId", second.ctx),
            "cuGreenCtxGetId green": driver.call("cuGreenCtxGetId", green.handle),
            "cuGreenCtxGetId second": driver.call("cuGreenCtxGetId", second.handle),
        }
        values = {name: value for name, (code, value) in answers.items() if code == 0}
        same = sorted([a, b] for a in values for b in values if a < b and values[a] == values[b])
        return {"codes": {name: code for name, (code, _) in answers.items()}, "equal": same}

    note("ids", ids)

    def recreated() -> Any:
        context_ids, green_ids, stream_ids = [], [], []
        for _ in range(3):
            with first_group(gpu) as made:
                context_ids.append(driver.call("cuCtxGetId", made.ctx)[1])
                green_ids.append(driver.call("cuGreenCtxGetId", made.handle)[1])
                stream_ids.append(driver.call("cuStreamGetId", made.stream)[1])
        kinds = {"cuCtxGetId": context_ids, "cuGreenCtxGetId": green_ids, "cuStreamGetId": stream_ids}
        return {
            name: "absent" if None in seen else "all different" if len(set(seen)) == 3 else "reused"
            for name, seen in kinds.items()
        }

    note("ids of contexts made one after the other", recreated)
    note(
        "SMs of a stream made under the pushed context",
        lambda: gpu.smids_on(pushed_stream, gpu.primary, 4 * gpu.sm_count),
    )
    note(
        "SMs of green's stream with the primary current",
        lambda: gpu.smids_on(green.stream, gpu.primary, 4 * gpu.sm_count),
    )
    note("SMs of green's stream with second current", lambda: gpu.smids_on(green.stream, second.ctx, 4 * gpu.sm_count))
    note(
        "SMs of a primary stream with green current", lambda: gpu.smids_on(primary_stream, green.ctx, 4 * gpu.sm_count)
    )
    note("SMs of the NULL stream with green current", lambda: gpu.smids_on(0, green.ctx, 4 * gpu.sm_count))
    note("SMs of the legacy stream with green current", lambda: gpu.smids_on(1, green.ctx, 4 * gpu.sm_count))
    note("SMs of the per-thread stream with green current", lambda: gpu.smids_on(2, green.ctx, 4 * gpu.sm_count))
    return note.answers


# Execution limits


def record_limits(gpu: Gpu, note: Note) -> Any:
    driver = gpu.driver

    def occupancy(name: str, kernel: str, stream: Any, threads: int, cluster: int) -> Any:
        config = launch_config(gpu, stream, max(cluster, 1) * gpu.sm_count, threads, cluster)
        code, value = driver.call(name, gpu.kernel(kernel), config)
        return value if code == 0 else {"code": code}

    def cooperative(stream: Any, threads: int, blocks: int) -> Code:
        code = driver.code(
            "cuLaunchCooperativeKernel",
            gpu.kernel("record_smids"), blocks, 1, 1, threads, 1, 1, 0, stream, gpu.arguments(1000),
        )  # fmt: skip
        return code or driver.code("cuStreamSynchronize", stream)

    def of_partition(ctx: Any, stream: Any, size: Any) -> Any:
        driver.must("cuCtxSetCurrent", ctx)
        try:
            answer: dict[str, Any] = {"sms": size, "MULTIPROCESSOR_COUNT": gpu.attribute("MULTIPROCESSOR_COUNT")}
            for threads in (128, 1024):
                function = gpu.kernel("record_smids")
                code, per_sm = driver.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, 0)
                answer[f"blocks per SM, {threads} threads"] = per_sm if code == 0 else {"code": code}
                if code == 0 and isinstance(size, int):
                    fits = per_sm * size
                    answer[f"cooperative, {threads} threads"] = {
                        "blocks that fit": fits,
                        "that many": cooperative(stream, threads, fits),
                        "one more": cooperative(stream, threads, fits + 1),
                    }
            if gpu.cc >= (9, 0):
                for threads in (128, 1024):
                    for kernel, kind in (("record_smids", "portable"), ("record_blocks", "any size")):
                        largest = occupancy("cuOccupancyMaxPotentialClusterSize", kernel, stream, threads, 0)
                        answer[f"max cluster, {kind}, {threads} threads"] = largest
                    answer[f"active clusters, {threads} threads"] = {
                        str(cluster): occupancy(
                            "cuOccupancyMaxActiveClusters", "record_blocks", stream, threads, cluster
                        )
                        for cluster in (1, 2, 4, 8, 16)
                    }
                answer["launch of clusters"] = {
                    str(cluster): clusters_seen(gpu, stream, cluster, THREADS, 2 * cluster)[0]
                    for cluster in (2, 4, 8, 16)
                }
            return answer
        finally:
            driver.call("cuCtxSetCurrent", gpu.primary)

    def of_resources(resources: list[Any]) -> Any:
        with Green(gpu, resources) as green:
            return of_partition(green.ctx, green.stream, green_count(green))

    stream = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    note("primary", lambda: of_partition(gpu.primary, stream, gpu.sm_count))
    for name, resources in parents(gpu).items():
        note(name, lambda resources=resources: of_resources(resources()))
    if gpu.cc >= (9, 0):
        rows: list[Any] = []
        for minimum in range(8, gpu.sm_count + 1, 8):
            for flags in (0, 1, 2):
                try:
                    with Green(gpu, gpu.groups(minimum, flags)[:1]) as green:
                        row = [
                            occupancy("cuOccupancyMaxPotentialClusterSize", "record_blocks", green.stream, 128, 0),
                            *(
                                occupancy("cuOccupancyMaxActiveClusters", "record_blocks", green.stream, 128, cluster)
                                for cluster in (2, 4, 8, 16)
                            ),
                        ]
                        rows.append([minimum, flags, green_count(green), row])
                except Refused as refused:
                    rows.append([minimum, flags, refused.answer["code"]])
        # A row: [minCount, flags, SMs, [max cluster size, active clusters of 2, 4, 8, 16]] of the first group.
        note.answers["clusters by size"] = rows
    return note.answers


# Events and captures


def capture(gpu: Gpu, mode: str) -> Any:
    return gpu.driver.enum("CUstreamCaptureMode", CAPTURE_MODES[mode])


def record_events(gpu: Gpu, note: Note) -> Any:
    driver = gpu.driver
    green, second = first_group(gpu), Green(gpu, gpu.groups(8)[1:2])
    event = driver.must("cuEventCreate", EVENT_DISABLE_TIMING)
    note("cuGreenCtxRecordEvent", lambda: driver.code("cuGreenCtxRecordEvent", green.handle, event))
    note("cuGreenCtxWaitEvent of another", lambda: driver.code("cuGreenCtxWaitEvent", second.handle, event))
    note("cuGreenCtxWaitEvent of the same", lambda: driver.code("cuGreenCtxWaitEvent", green.handle, event))
    note("cuCtxRecordEvent green", lambda: driver.code("cuCtxRecordEvent", green.ctx, event))
    note("cuCtxWaitEvent green", lambda: driver.code("cuCtxWaitEvent", second.ctx, event))
    note("cuCtxRecordEvent primary", lambda: driver.code("cuCtxRecordEvent", gpu.primary, event))
    note("cuCtxWaitEvent primary", lambda: driver.code("cuCtxWaitEvent", gpu.primary, event))
    note("cuEventSynchronize", lambda: driver.code("cuEventSynchronize", event))
    note("cuEventRecord on a green stream", lambda: driver.code("cuEventRecord", event, green.stream))
    note("cuStreamWaitEvent on a primary stream", lambda: driver.code("cuStreamWaitEvent", 0, event, 0))

    def timed() -> Any:
        begin, end = (driver.must("cuEventCreate", 0) for _ in range(2))
        answer: dict[str, Any] = {
            "record begin": driver.code("cuGreenCtxRecordEvent", green.handle, begin),
            "launch": gpu.launch(green.stream, 8, SPIN_CYCLES),
            "record end": driver.code("cuGreenCtxRecordEvent", green.handle, end),
            "cuEventSynchronize": driver.code("cuEventSynchronize", end),
        }
        code, elapsed = driver.call("cuEventElapsedTime", begin, end)
        answer["cuEventElapsedTime"] = code
        answer["elapsed is more than 0.05 ms"] = code == 0 and elapsed > 0.05
        return answer

    note("time between events of a whole context", timed)

    during: dict[str, Callable[[], Any]] = {
        "nothing": lambda: None,
        "cuGreenCtxRecordEvent": lambda: driver.code("cuGreenCtxRecordEvent", green.handle, event),
        "cuGreenCtxWaitEvent": lambda: driver.code("cuGreenCtxWaitEvent", green.handle, event),
        "cuCtxRecordEvent green": lambda: driver.code("cuCtxRecordEvent", green.ctx, event),
        "cuCtxWaitEvent green": lambda: driver.code("cuCtxWaitEvent", green.ctx, event),
        "cuCtxRecordEvent primary": lambda: driver.code("cuCtxRecordEvent", gpu.primary, event),
        "cuCtxWaitEvent primary": lambda: driver.code("cuCtxWaitEvent", gpu.primary, event),
        "cuGreenCtxRecordEvent of another": lambda: driver.code("cuGreenCtxRecordEvent", second.handle, event),
        "cuGreenCtxWaitEvent of another": lambda: driver.code("cuGreenCtxWaitEvent", second.handle, event),
        "cuGreenCtxCreate": lambda: create_and_drop(
            gpu, driver.must("cuDevResourceGenerateDesc", gpu.groups(8)[:1], 1), CREATE_DEFAULT_STREAM
        ),
        "cuGreenCtxStreamCreate": lambda: driver.code("cuGreenCtxStreamCreate", green.handle, STREAM_NON_BLOCKING, 0),
        "cuGreenCtxGetDevResource": lambda: queried(gpu, "cuGreenCtxGetDevResource", green.handle),
        "cuStreamGetGreenCtx": lambda: driver.code("cuStreamGetGreenCtx", green.stream),
        "cuStreamSynchronize of another of its streams": lambda: driver.code("cuStreamSynchronize", idle),
        "cuCtxSynchronize": lambda: driver.code("cuCtxSynchronize"),
    }
    idle = green.new_stream()

    def while_capturing(mode: str, stream: Any, ask: Callable[[], Any]) -> Any:
        """[begin, the question, end]: what a call answers during a capture, and whether the capture survives it."""
        begin = driver.code("cuStreamBeginCapture", stream, capture(gpu, mode))
        answer = ask()
        end, graph = driver.call("cuStreamEndCapture", stream)
        if end == 0 and graph is not None and int(graph):
            driver.call("cuGraphDestroy", graph)
        return [begin, answer, end]

    for mode in CAPTURE_MODES:
        for name, ask in during.items():
            note(
                f"while a green stream captures ({mode}): {name}",
                lambda m=mode, a=ask: while_capturing(m, green.stream, a),
            )
    primary_stream = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    for name in ("cuCtxRecordEvent primary", "cuCtxRecordEvent green", "cuGreenCtxRecordEvent", "cuGreenCtxCreate"):
        note(
            f"while a primary stream captures (relaxed): {name}",
            lambda name=name: while_capturing("relaxed", primary_stream, during[name]),
        )

    # What may be asked of a stream while it captures. Each answer: begin, the question, end.
    questions = (
        *("cuStreamGetId", "cuStreamGetFlags", "cuStreamQuery", "cuStreamSynchronize", "cuStreamGetPriority"),
        *("cuStreamGetCtx", "cuStreamGetGreenCtx", "cuStreamIsCapturing"),
    )
    for mode in CAPTURE_MODES:
        for whose, stream in (("green", green.stream), ("primary", primary_stream)):
            for name in questions:
                note(
                    f"a {whose} stream that captures ({mode}) is asked: {name}",
                    lambda m=mode, s=stream, n=name: while_capturing(m, s, lambda: driver.code(n, s)),
                )

    def destroyed_while_capturing() -> Any:
        gone = Green(gpu, gpu.groups(8)[2:3])
        answer = {
            "begin": driver.code("cuStreamBeginCapture", gone.stream, capture(gpu, "relaxed")),
            "destroy the context": driver.code("cuGreenCtxDestroy", gone.handle),
        }
        answer["end"] = driver.code("cuStreamEndCapture", gone.stream)
        return answer

    note("the context of a capturing stream is destroyed", destroyed_while_capturing)

    def replayed(captured_on: Any, made_current: Any, replay_on: Any) -> Any:
        blocks = 4 * gpu.sm_count
        driver.must("cuCtxSetCurrent", made_current)
        try:
            driver.must("cuStreamBeginCapture", captured_on, capture(gpu, "relaxed"))
            launched = gpu.launch(captured_on, blocks)
            graph = driver.must("cuStreamEndCapture", captured_on)
        finally:
            driver.call("cuCtxSetCurrent", gpu.primary)
        if launched != 0:
            return {"code": launched}
        executable = driver.must("cuGraphInstantiate", graph, 0)
        gpu.clear(replay_on)
        driver.must("cuGraphLaunch", executable, replay_on)
        driver.must("cuStreamSynchronize", replay_on)
        seen = gpu.marked()
        driver.call("cuGraphExecDestroy", executable)
        driver.call("cuGraphDestroy", graph)
        return seen

    note("SMs: captured on green, replayed on the primary", lambda: replayed(green.stream, gpu.primary, primary_stream))
    note("SMs: captured on green, replayed on second", lambda: replayed(green.stream, gpu.primary, second.stream))
    note("SMs: captured on the primary, replayed on green", lambda: replayed(primary_stream, gpu.primary, green.stream))
    note("SMs: captured on the primary, green current", lambda: replayed(primary_stream, green.ctx, primary_stream))

    def replayed_after_destroy() -> Any:
        gone = Green(gpu, gpu.groups(8)[2:3])
        driver.must("cuStreamBeginCapture", gone.stream, capture(gpu, "relaxed"))
        gpu.launch(gone.stream, 8, 1000)
        graph = driver.must("cuStreamEndCapture", gone.stream)
        executable = driver.must("cuGraphInstantiate", graph, 0)
        answer = {"destroy": driver.code("cuGreenCtxDestroy", gone.handle)}
        answer["launch the graph"] = driver.code("cuGraphLaunch", executable, primary_stream)
        answer["synchronize"] = driver.code("cuStreamSynchronize", primary_stream)
        answer["instantiate again"] = driver.code("cuGraphInstantiate", graph, 0)
        return answer

    # Last: a graph of a destroyed context may take the process with it.
    note("a graph whose context is destroyed before the replay", replayed_after_destroy)
    return note.answers


# Structured split, workqueues, stream resources

BACKFILL = 1
EXAMPLES: dict[str, list[tuple[int, int, int, int]]] = {
    # [smCount, coscheduledSmCount, preferredCoscheduledSmCount, flags] of each group, from the driver's documentation
    "16 for clusters of 16": [(16, 0, 0, 0)],
    "16 without clusters": [(16, 2, 2, 0)],
    "16 without clusters, then the rest": [(16, 2, 2, 0), (0, 2, 2, BACKFILL)],
    "28 and 32 for clusters of 4": [(28, 4, 4, 0), (32, 4, 4, 0)],
    "all that can run clusters of 8": [(0, 8, 8, 0)],
    "8, then the rest for clusters of 4": [(8, 2, 2, 0), (0, 4, 4, 0)],
    "discover by default": [(0, 0, 0, 0)],
    "discover 2": [(0, 2, 0, 0)],
    "discover 4": [(0, 4, 0, 0)],
    "discover 16": [(0, 16, 0, 0)],
    "discover 32": [(0, 32, 0, 0)],
    "discover 8, preferred 16": [(0, 8, 16, 0)],
    "everything by backfill": [(0, 2, 2, BACKFILL)],
    "everything by backfill of 8": [(0, 8, 8, BACKFILL)],
    "30 by backfill of 8": [(30, 8, 0, BACKFILL)],
    "130 by backfill of 16": [(130, 16, 0, BACKFILL)],
    "uneven": [(8, 0, 0, 0), (24, 0, 0, 0), (64, 0, 0, 0)],
    "uneven of 2": [(2, 2, 0, 0), (6, 2, 0, 0), (10, 2, 0, 0)],
    "two discoveries": [(0, 8, 0, 0), (0, 2, 0, 0)],
    "discovery first, then 8": [(0, 8, 0, 0), (8, 2, 0, 0)],
    "odd count": [(7, 2, 0, 0)],
    "odd co-scheduling": [(16, 3, 0, 0)],
    "co-scheduling of 34": [(34, 34, 0, 0)],
    "not a multiple": [(20, 8, 0, 0)],
    "more than there is": [(4096, 2, 0, 0)],
    "unknown flag": [(16, 0, 0, 128)],
    "no groups": [],
}


def record_structured_split(gpu: Gpu, note: Note) -> Any:
    """[code, SMs of each group, SMs of the remainder, the parameters written back], with and without a result array."""
    code, found = gpu.driver.call("cuGetProcAddress", b"cuDevSmResourceSplit", max(gpu.version, 13010), 0)
    address = int(found[0]) if code == 0 and found[0] else 0
    if not address:
        note("cuDevSmResourceSplit through the bindings", lambda: split_through_bindings(gpu))
        note.answers["cuDevSmResourceSplit"] = {"absent": True, "cuGetProcAddress": code}
        return note.answers
    # Through ctypes and not the bindings, which cannot leave the result array out and do not hand the parameters back.
    pointer, word = ctypes.c_void_p, ctypes.c_uint
    split = ctypes.CFUNCTYPE(ctypes.c_int, pointer, word, pointer, pointer, word, pointer)(address)

    def ask(groups: list[tuple[int, int, int, int]], dry: bool, flags: int = 0) -> tuple[Any, list[Any]]:
        count = len(groups)
        params = (ctypes.c_uint32 * (16 * max(count, 1)))()
        for index, group in enumerate(groups):
            params[16 * index : 16 * index + 4] = list(group)
        results = [gpu.driver.module.CUdevResource() for _ in range(count)]
        array = ctypes.create_string_buffer(144 * max(count, 1))
        remainder = gpu.driver.module.CUdevResource()
        code = split(
            None if dry else ctypes.addressof(array),
            count,
            int(gpu.whole.getPtr()),
            int(remainder.getPtr()),
            flags,
            ctypes.addressof(params),
        )
        for index, result in enumerate(results):
            ctypes.memmove(int(result.getPtr()), ctypes.addressof(array) + 144 * index, 144)
        written = [list(params[16 * index : 16 * index + 5]) for index in range(count)]
        if code != 0:
            return [code, written], []
        sizes = [] if dry else [count_of(result) for result in results]
        return [code, sizes, count_of(remainder), written], [*results, remainder]

    for name, groups in EXAMPLES.items():
        note(f"{name}: split", lambda groups=groups: ask(groups, dry=False)[0])
        note(f"{name}: dry", lambda groups=groups: ask(groups, dry=True)[0])
    note("flags 1", lambda: ask([(16, 0, 0, 0)], dry=False, flags=1)[0])
    for name in list(EXAMPLES)[: 4 if gpu.quick else 8]:
        note(
            f"{name}: smids",
            lambda name=name: [
                gpu.smids_of([part]) if count_of(part) else [] for part in ask(EXAMPLES[name], dry=False)[1]
            ],
        )
    return note.answers


def split_through_bindings(gpu: Gpu) -> Any:
    params = getattr(gpu.driver.module, "CU_DEV_SM_RESOURCE_GROUP_PARAMS", None)
    return gpu.driver.code("cuDevSmResourceSplit", 1, gpu.whole, 0, [params()] if params is not None else [])


def workqueue_fields(gpu: Gpu, name: str, handle: Any) -> Any:
    code, resource = gpu.driver.call(name, handle, gpu.resource_type(WORKQUEUE_CONFIG))
    if code != 0:
        return {"code": code}
    config = resource.wqConfig
    return {"wqConcurrencyLimit": config.wqConcurrencyLimit, "sharingScope": int(config.sharingScope)}


def record_workqueues(gpu: Gpu, note: Note) -> Any:
    driver = gpu.driver
    note("device: configuration", lambda: workqueue_fields(gpu, "cuDeviceGetDevResource", gpu.device))
    note("device: queue", lambda: queried(gpu, "cuDeviceGetDevResource", gpu.device, WORKQUEUE))
    note("primary: configuration", lambda: workqueue_fields(gpu, "cuCtxGetDevResource", gpu.primary))
    note("primary: queue", lambda: queried(gpu, "cuCtxGetDevResource", gpu.primary, WORKQUEUE))
    green = first_group(gpu)
    note("green: configuration", lambda: workqueue_fields(gpu, "cuGreenCtxGetDevResource", green.handle))
    note("green: queue", lambda: queried(gpu, "cuGreenCtxGetDevResource", green.handle, WORKQUEUE))
    for name, stream in (("green stream", green.stream), ("NULL stream", gpu.driver.module.CUstream(0))):
        for kind in (SM, WORKQUEUE_CONFIG, WORKQUEUE):
            note(f"{name}: resource type {kind}", lambda s=stream, k=kind: queried(gpu, "cuStreamGetDevResource", s, k))

    def with_configuration(limit: int, scope: int) -> Any:
        config = driver.must("cuDeviceGetDevResource", gpu.device, gpu.resource_type(WORKQUEUE_CONFIG))
        config.wqConfig.wqConcurrencyLimit = limit
        config.wqConfig.sharingScope = driver.enum("CUdevWorkqueueConfigScope", scope)
        with Green(gpu, [gpu.groups(8)[0], config]) as made:
            return {
                "configuration": workqueue_fields(gpu, "cuGreenCtxGetDevResource", made.handle),
                "sm": queried(gpu, "cuGreenCtxGetDevResource", made.handle),
            }

    code, _ = driver.call("cuDeviceGetDevResource", gpu.device, gpu.resource_type(WORKQUEUE_CONFIG))
    if code == 0:
        for limit in (0, 1, 2, 8, 32, 128, 1000):
            for scope in (0, 1):
                note(f"limit {limit}, scope {scope}", lambda n=limit, s=scope: with_configuration(n, s))
    return note.answers


# What the header of 13.1 and newer refuses


def record_refusals(gpu: Gpu, note: Note) -> Any:
    """Codes of calls that the headers speak of: descriptors, limits of launches, captures that are over."""
    driver = gpu.driver

    def described(make: Callable[[], Sequence[Any]]) -> Code:
        resources = make()
        return driver.code("cuDevResourceGenerateDesc", resources, len(resources))

    note("descriptor: two groups of one split", lambda: described(lambda: gpu.groups(16, asked=2)))
    note(
        "descriptor: a group and the remainder",
        lambda: described(lambda: [gpu.groups(16, asked=2)[0], gpu.remainder(16, asked=2)]),
    )
    note(
        "descriptor: groups of two splits",
        lambda: described(lambda: [gpu.groups(8, asked=2)[1], gpu.groups(16, asked=2)[1]]),
    )
    note(
        "descriptor: groups of two grains",
        lambda: described(lambda: [gpu.groups(8, asked=1)[0], gpu.groups(2, flags=1, asked=60)[50]]),
    )

    def launched(grid: tuple[int, int, int], block: tuple[int, int, int] = (32, 1, 1), shared: int = 0) -> Code:
        return driver.code(
            "cuLaunchKernel", gpu.kernel("record_smids"), *grid, *block, shared, 0, gpu.arguments(1000), 0
        )

    note("launch: grid.y of 65536", lambda: launched((1, 65536, 1)))
    note("launch: grid.z of 65536", lambda: launched((1, 1, 65536)))
    note("launch: block.z of 65", lambda: launched((1, 1, 1), (1, 1, 65)))
    note("launch: 200 KiB of shared memory that were not allowed", lambda: launched((1, 1, 1), shared=200 << 10))
    note(
        "instantiate: unknown flags",
        lambda: driver.code("cuGraphInstantiate", driver.must("cuGraphCreate", 0), 1 << 30),
    )
    note("cuMemHostAlloc: unknown flags", lambda: driver.code("cuMemHostAlloc", 64, 0xFFFF))

    def over(outcome: str) -> Any:
        streams = [driver.must("cuStreamCreate", 1) for _ in range(2)]
        event = driver.must("cuEventCreate", 0)
        driver.must("cuStreamBeginCapture", streams[0], capture(gpu, "relaxed"))
        gpu.launch(streams[0], 1, 1000)
        driver.must("cuEventRecord", event, streams[0])
        if outcome == "unjoined":
            driver.must("cuStreamWaitEvent", streams[1], event, 0)
            gpu.launch(streams[1], 1, 1000)
        ended = driver.code("cuStreamEndCapture", streams[0])
        return {
            "cuStreamEndCapture": ended,
            "cuStreamWaitEvent of its event": driver.code("cuStreamWaitEvent", streams[1], event, 0),
            "cuStreamIsCapturing": driver.code("cuStreamIsCapturing", streams[1]),
            "a launch": gpu.launch(streams[1], 1, 1000),
        }

    note("a capture that ended well", lambda: over("well"))
    note("a capture that ended unjoined", lambda: over("unjoined"))
    return note.answers


# Modules, graphs and descriptors of tensors: through ctypes, for calls that leave results out

VARIABLES = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 table[400];
.visible .global .align 4 .u32 answer = 42;
.global .align 8 .u64 quiet[3] = {1, 2, 3};
.visible .const .align 4 .f32 scale = 0f3F800000;
.visible .entry work(.param .u64 out) { ret; }
.visible .entry idle() { ret; }
\0"""
# Where the card and its host are, and not what it can do.
PLACES = {"PCI_BUS_ID", "PCI_DEVICE_ID", "PCI_DOMAIN_ID", "GPU_PCI_DEVICE_ID", "GPU_PCI_SUBSYSTEM_ID", "HOST_NUMA_ID"}


# Older names of attributes, which some versions of the bindings list too.
OLDER_NAMES = {
    "MAXIMUM_TEXTURE2D_ARRAY_HEIGHT",
    "MAXIMUM_TEXTURE2D_ARRAY_NUMSLICES",
    "MAXIMUM_TEXTURE2D_ARRAY_WIDTH",
    "REGISTERS_PER_BLOCK",
    "SHARED_MEMORY_PER_BLOCK",
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
}


def raw_call(name: str, *arguments: Any) -> Code:
    return int(getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments))


def made(name: str, *arguments: Any) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    code = raw_call(name, ctypes.byref(handle), *arguments)
    if code != 0:
        raise Refused(name, code)
    return handle


def record_attributes(gpu: Gpu, note: Note) -> Any:
    """Each attribute that driver and bindings know, by its name in cuda.h."""
    prefix = "CU_DEVICE_ATTRIBUTE_"
    for member in gpu.driver.module.CUdevice_attribute:
        name = member.name.removeprefix(prefix)
        if name in PLACES | OLDER_NAMES or name == "MAX" or int(member) < 1:
            continue
        code, value = gpu.driver.call("cuDeviceGetAttribute", member, gpu.device)
        if code == 0:
            note(name, lambda value=value: value)
    return note.answers


def record_modules(gpu: Gpu, note: Note) -> Any:
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    both = (ctypes.byref(address), ctypes.byref(size))
    module = made("cuModuleLoadData", VARIABLES)
    library = made("cuLibraryLoadData", VARIABLES, None, None, 0, None, None, 0)
    kernel = made("cuLibraryGetKernel", library, b"work")
    functions = {"module": ("cuModuleGetGlobal_v2", module), "library": ("cuLibraryGetGlobal", library)}

    def asked(function: str, owner: Any, name: bytes) -> Any:
        """The code, and what the call left of an address and a size of 7."""
        address.value, size.value = 7, 7
        code = raw_call(function, *both, owner, name)
        return [code, "set" if address.value not in (0, 7) else address.value, size.value]

    for what, (function, owner) in functions.items():
        for name in ("table", "answer", "quiet", "scale", "missing"):
            note(f"{what}: {name}", lambda f=function, o=owner, n=name: asked(f, o, n.encode()))
        note(f"{what}: address alone", lambda f=function, o=owner: raw_call(f, both[0], None, o, b"table"))
        note(f"{what}: size alone", lambda f=function, o=owner: raw_call(f, None, both[1], o, b"table"))
        note(f"{what}: neither", lambda f=function, o=owner: raw_call(f, None, None, o, b"table"))
    note("module: the name of a kernel", lambda: asked("cuModuleGetGlobal_v2", module, b"work"))
    note("module: no name", lambda: asked("cuModuleGetGlobal_v2", module, b""))

    def content(name: bytes) -> Any:
        asked("cuModuleGetGlobal_v2", module, name)
        copy = ctypes.create_string_buffer(size.value)
        return [raw_call("cuMemcpyDtoH_v2", copy, address, size), sorted(set(copy.raw))]

    note("module: content of table", lambda: content(b"table"))
    note("module: content of answer", lambda: content(b"answer"))
    note("module: free", lambda: raw_call("cuMemFree_v2", address))

    def extent() -> Any:
        base, length = ctypes.c_uint64(), ctypes.c_size_t()
        asked("cuModuleGetGlobal_v2", module, b"table")
        code = raw_call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(length), address)
        return [code, address.value - base.value, length.value]

    note("module: extent of table", extent)
    note("cuProfilerStart", lambda: raw_call("cuProfilerStart"))
    note("cuProfilerStop", lambda: raw_call("cuProfilerStop"))
    raw_call("cuCtxSetCurrent", None)
    place, width = ctypes.c_size_t(), ctypes.c_size_t()
    info = (kernel, ctypes.c_size_t(0), ctypes.byref(place), ctypes.byref(width))
    value = ctypes.c_int()
    note("without a context: cuLibraryGetGlobal", lambda: raw_call("cuLibraryGetGlobal", *both, library, b"answer"))
    note("without a context: cuKernelGetParamInfo", lambda: raw_call("cuKernelGetParamInfo", *info))
    note(
        "without a context: cuKernelGetAttribute",
        lambda: raw_call("cuKernelGetAttribute", ctypes.byref(value), 0, kernel, 0),
    )
    note("without a context: cuProfilerStart", lambda: raw_call("cuProfilerStart"))
    return note.answers


def record_graphs(gpu: Gpu, note: Note) -> Any:
    function = made("cuModuleGetFunction", made("cuModuleLoadData", VARIABLES), b"idle")
    stream = made("cuStreamCreate", 1)

    def launch() -> Code:
        return raw_call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, None, None)

    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    raw_call("cuStreamBeginCapture_v2", stream, 2)
    launch()
    raw_call("cuStreamEndCapture", stream, ctypes.byref(graph))
    raw_call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))

    def into_a_capture(mode: int) -> Any:
        status = ctypes.c_int()
        raw_call("cuStreamBeginCapture_v2", stream, mode)
        answers = {"a launch before": launch(), "cuGraphLaunch": raw_call("cuGraphLaunch", executable, stream)}
        raw_call("cuStreamIsCapturing", stream, ctypes.byref(status))
        answers |= {"status": status.value, "a launch after": launch()}
        return answers | {"cuStreamEndCapture": raw_call("cuStreamEndCapture", stream, ctypes.byref(graph))}

    for mode in range(3):
        note(f"an executable graph launched into a capture of mode {mode}", lambda mode=mode: into_a_capture(mode))
    return note.answers


def record_tensor_maps(gpu: Gpu, note: Note) -> Any:
    """A descriptor at addresses that are multiples of what stands before the colon, and of no more."""
    host = ctypes.create_string_buffer(1024)
    start = (ctypes.addressof(host) + 255) // 256 * 256
    sizes, strides = (ctypes.c_uint64 * 2)(64, 64), (ctypes.c_uint64 * 1)(256)
    box, steps = (ctypes.c_uint32 * 2)(32, 8), (ctypes.c_uint32 * 2)(1, 1)
    float32 = 7

    def encode(offset: int) -> Code:
        shape = (sizes, strides, box, steps, 0, 0, 0, 0)
        tensor = ctypes.c_void_p(int(gpu.out) // 256 * 256)
        return raw_call("cuTensorMapEncodeTiled", ctypes.c_void_p(start + offset), float32, 2, tensor, *shape)

    def replace(offset: int) -> Code:
        return raw_call("cuTensorMapReplaceAddress", ctypes.c_void_p(start + offset), ctypes.c_void_p(int(gpu.out)))

    for offset in (128, 64, 32, 16, 8):
        note(f"{offset}: encode", lambda offset=offset: encode(offset))
        note(f"{offset}: replace", lambda offset=offset: replace(offset))
    return note.answers


# Measured: what a replay does not compare


def record_measured(gpu: Gpu, note: Note) -> Any:
    driver = gpu.driver

    def microseconds(work: Callable[[], Any], repeats: int) -> dict[str, float]:
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            work()
            times.append((time.perf_counter() - begin) * 1e6)
        return {"median": round(statistics.median(times), 2), "min": round(min(times), 2), "max": round(max(times), 2)}

    def free() -> int:
        return int(driver.must("cuMemGetInfo")[0])

    group = gpu.groups(8)[:1]
    create_times, destroy_times, contexts, greens, streams = [], [], [], [], []
    with Green(gpu, group):  # the first one pays for what the process does once
        pass
    before = free()
    pairs = 20
    kept_alive = 0
    for _ in range(pairs):
        descriptor = driver.must("cuDevResourceGenerateDesc", group, 1)
        start = time.perf_counter()
        handle = driver.must("cuGreenCtxCreate", descriptor, gpu.device, CREATE_DEFAULT_STREAM)
        made = time.perf_counter()
        kept_alive = kept_alive or before - free()
        contexts.append(int(driver.must("cuCtxFromGreenCtx", handle)))
        greens.append(int(handle))
        stream = driver.must("cuGreenCtxStreamCreate", handle, STREAM_NON_BLOCKING, 0)
        streams.append(int(stream))
        driver.must("cuStreamDestroy", stream)
        begin = time.perf_counter()
        driver.must("cuGreenCtxDestroy", handle)
        destroy_times.append((time.perf_counter() - begin) * 1e6)
        create_times.append((made - start) * 1e6)
    after = free()
    note.answers.update(
        {
            "create_us": round(statistics.median(create_times), 1),
            "destroy_us": round(statistics.median(destroy_times), 1),
            "bytes_while_one_lives": kept_alive,
            "bytes_lost_per_pair": (before - after) / pairs,
            "pairs": pairs,
            "CUcontext_addresses_used": len(set(contexts)),
            "CUgreenCtx_addresses_used": len(set(greens)),
            "CUstream_addresses_used": len(set(streams)),
        }
    )
    eights = gpu.groups(8)
    note("query_us", lambda: microseconds(lambda: device_resource(gpu), 200))
    note("split_us", lambda: microseconds(lambda: gpu.split(gpu.whole, 8, 0, 1), 200))
    note(
        "descriptor_of_1_us", lambda: microseconds(lambda: driver.call("cuDevResourceGenerateDesc", eights[:1], 1), 100)
    )
    few = eights[:8]
    note(
        "descriptor_of_8_us", lambda: microseconds(lambda: driver.call("cuDevResourceGenerateDesc", few, len(few)), 100)
    )

    def ids() -> Any:
        with Green(gpu, group) as made:
            return {
                "cuCtxGetId primary": driver.call("cuCtxGetId", gpu.primary)[1],
                "cuCtxGetId green": driver.call("cuCtxGetId", made.ctx)[1],
                "cuGreenCtxGetId": driver.call("cuGreenCtxGetId", made.handle)[1],
                "cuStreamGetId": driver.call("cuStreamGetId", made.stream)[1],
            }

    note("ids", ids)

    def fresh_stream_recycled() -> Any:
        with Green(gpu, group) as made:
            seen = []
            for _ in range(10):
                stream = made.new_stream()
                seen.append(int(stream))
                driver.must("cuStreamDestroy", stream)
            return len(set(seen))

    note("stream_addresses_used_by_10_on_one_context", fresh_stream_recycled)
    return note.answers


SECTIONS: dict[str, Section] = {
    "device": record_device,
    "split_by_count": record_split_by_count,
    "split_count_only": record_split_count_only,
    "smids": record_smids,
    "layout": record_layout,
    "two_step": record_two_step,
    "descriptors": record_descriptors,
    "identity": record_identity,
    "limits": record_limits,
    "events": record_events,
    "structured_split": record_structured_split,
    "workqueues": record_workqueues,
    "refusals": record_refusals,
    "attributes": record_attributes,
    "modules": record_modules,
    "graphs": record_graphs,
    "tensor_maps": record_tensor_maps,
    "measured": record_measured,
    "misuse.resplit": misuse_resplit,
    "misuse.arguments": misuse_arguments,
    "misuse.destroy_while_current": misuse_destroy_while_current,
    "misuse.push_destroyed": misuse_push_destroyed,
    "misuse.query_destroyed": misuse_query_destroyed,
    "misuse.stream_after_context": misuse_stream_after_context,
    "misuse.pushed_stream_after_context": misuse_pushed_stream_after_context,
    "misuse.destroy_with_work": misuse_destroy_with_work,
    "misuse.destroy_twice": misuse_destroy_twice,
    "misuse.ctx_destroy": misuse_ctx_destroy,
    "misuse.nulls": misuse_nulls,
    "misuse.no_current_context": misuse_no_current_context,
    "misuse.primary_released": misuse_primary_released,
    "misuse.inner_after_outer": misuse_inner_after_outer,
    "misuse.edited": misuse_edited,
    "misuse.threads": misuse_threads,
}

# Sections


def run_section(name: str, ordinal: int, quick: bool, path: Path) -> None:
    """The child's whole work: one section, its answers in `path`."""
    note = Note(path)
    result: dict[str, Any] = {}
    gpu = None
    try:
        gpu = Gpu(ordinal, quick)
        answers = SECTIONS[name](gpu, note)
        result["answers"] = answers
    except Exception:
        result["answers"] = note.answers
        result["error"] = traceback.format_exc().splitlines()[-6:]
    if gpu is not None:
        result["absent"] = gpu.driver.absent
    path.write_text(json.dumps(result))
    # The interpreter's and the driver's own tear-down may fail on what a section left behind, which is not an answer.
    sys.stdout.flush()
    os._exit(0)


def start_section(name: str, arguments: argparse.Namespace) -> tuple[dict[str, Any], float]:
    """Runs one section in a process of its own; what it answered, and the seconds it took."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answers.json"
        command = [sys.executable, os.path.abspath(__file__), "--section", name, "--out", str(path)]
        command += ["--device", str(arguments.device)] + (["--quick"] if arguments.quick else [])
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        ended = ""
        try:
            output, _ = process.communicate(timeout=arguments.limit)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            ended = f"killed after {arguments.limit} s"
        if not ended and process.returncode != 0:
            code = process.returncode
            ended = signal.Signals(-code).name if code < 0 else f"exit {code}"
        result = json.loads(path.read_text()) if path.exists() else {"answers": {}}
        if ended:
            result["ended"] = ended
            result["output"] = output.decode(errors="replace").splitlines()[-6:]
    return result, time.perf_counter() - begin


def merge(recording: dict[str, Any], name: str, result: dict[str, Any]) -> None:
    """Puts one section's result in its place; how it ended goes in only where it did not end well."""
    answers = result["answers"]
    if isinstance(answers, dict):
        answers.update({"!" + key: result[key] for key in ("error", "ended", "output") if key in result})
    group, _, item = name.partition(".")
    if item:
        recording.setdefault(group, {})[item] = answers
    else:
        recording[group] = answers
    recording.setdefault("absent", {}).update(result.get("absent", {}))


def text_of(value: Any, indent: str = "") -> str:
    """Compact JSON that still diffs: lists of numbers, short values and rows on one line, everything else spread."""
    line = json.dumps(value, separators=(",", ":"))
    if not isinstance(value, dict | list) or not value or len(line) + len(indent) <= 120:
        return line
    inner = indent + " "
    if isinstance(value, list):
        if all(not isinstance(item, dict | list) for item in value):
            return line
        items = [json.dumps(item, separators=(",", ":")) for item in value]
        return "[\n" + ",\n".join(inner + item for item in items) + "\n" + indent + "]"
    pairs = [f"{inner}{json.dumps(key)}:{text_of(item, inner)}" for key, item in value.items()]
    return "{\n" + ",\n".join(pairs) + "\n" + indent + "}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--device", type=int, default=0, help="ordinal of the device")
    parser.add_argument("--quick", action="store_true", help="fewer launches: for a first look")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that one section may take")
    parser.add_argument("--only", action="append", default=[], help="record only sections whose name begins so")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.section:
        run_section(arguments.section, arguments.device, arguments.quick, arguments.out)

    import cuda.bindings

    recording: dict[str, Any] = {
        "_what": "What the CUDA driver answered on one GPU, written by tests/hardware/record.py. Codes are CUresult"
        " numbers; 'absent' is a function that the driver or the bindings lack; 'no answer' is where a process ended.",
        "format": FORMAT,
        "recorded": {
            "date": time.strftime("%Y-%m-%d"),
            "bindings": cuda.bindings.__version__,
            "quick": arguments.quick,
        },
    }
    names = [name for name in SECTIONS if not arguments.only or name.startswith(tuple(arguments.only))]
    begin = time.perf_counter()
    failed = 0

    def finish(name: str, result: dict[str, Any], seconds: float) -> None:
        nonlocal failed
        merge(recording, name, result)
        arguments.out.write_text(text_of(recording) + "\n")
        bad = "error" in result or "ended" in result
        failed += bad
        how = result.get("ended") or (result["error"][-1] if "error" in result else "ok")
        print(f"{name:36} {seconds:6.1f} s  {how}", flush=True)

    for name in (name for name in names if not name.startswith("misuse.")):
        finish(name, *start_section(name, arguments))
    # The items of misuse look at return codes alone, so that some of them can share the device.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        items = [name for name in names if name.startswith("misuse.")]
        for name, (result, seconds) in zip(
            items, pool.map(lambda name: start_section(name, arguments), items), strict=True
        ):
            finish(name, result, seconds)
    print(f"{len(names)} sections, {failed} with an error, {time.perf_counter() - begin:.1f} s: {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
