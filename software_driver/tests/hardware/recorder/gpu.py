"""The driver, one GPU of it and green contexts on that, as every section uses them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

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


def parents(gpu: Gpu) -> dict[str, Callable[[], list[Any]]]:
    """The partitions that the later sections look at, by name; each makes its resources when called."""
    table: dict[str, Callable[[], list[Any]]] = {"whole": lambda: [gpu.whole]}
    for size, flags in ((8, 0), (16, 0), (32, 0), (64, 0), (120, 0), (128, 0), (64, 2), (10, 1), (64, 1)):
        table[f"{size} flags={flags}"] = lambda size=size, flags=flags: gpu.groups(size, flags)[:1]
    table["rest of one 8"] = lambda: [gpu.remainder(8, 0, 1)]
    table["groups 0,3,7 of 8"] = lambda: [gpu.groups(8)[index] for index in (0, 3, 7)]
    table["rest of all 8"] = lambda: [gpu.remainder(8)]
    return table


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


def device_resource(gpu: Gpu) -> Any:
    return gpu.driver.must("cuDeviceGetDevResource", gpu.device, gpu.resource_type(SM))


def create_and_drop(gpu: Gpu, descriptor: Any, flags: int) -> Code:
    code, handle = gpu.driver.call("cuGreenCtxCreate", descriptor, gpu.device, flags)
    if code == 0:
        gpu.driver.call("cuGreenCtxDestroy", handle)
    return code


def capture(gpu: Gpu, mode: str) -> Any:
    return gpu.driver.enum("CUstreamCaptureMode", CAPTURE_MODES[mode])
