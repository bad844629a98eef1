"""Contexts of graph nodes: where the nodes of one graph run when their parameters name another context."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from .gpu import CLUSTER_DIMENSION, PTX, SPIN_CYCLES, STREAM_NON_BLOCKING, THREADS, Code, Gpu, Green, capture, who
from .notes import Note

KERNEL, COPY, FILL, HOST, CHILD, EMPTY, WAIT, RECORD, ALLOC, FREE, CONDITIONAL = 0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 13
COOPERATIVE, PROGRAMMATIC, PRIORITY = 2, 6, 8
ATTRIBUTES = {
    "cooperative": COOPERATIVE,
    "cluster dimension": CLUSTER_DIMENSION,
    "cluster policy": 5,
    "programmatic": PROGRAMMATIC,
    "priority": PRIORITY,
    "memory domain map": 9,
    "memory domain": 10,
    "preferred cluster": 11,
    "updatable by the device": 13,
    "shared memory carveout": 14,
}


class Bench:
    """Two partitions, a and b, a stream of the primary context, and kernels in all the ways to get one."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.driver, self.module = gpu, gpu.driver, gpu.driver.module
        groups = gpu.groups(16)
        self.a, self.b = Green(gpu, groups[:1]), Green(gpu, groups[1:3])
        self.stream = self.driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
        self.kernel = gpu.kernel("record_smids")  # a CUkernel as a CUfunction
        self.sms = {"a": gpu.smids(self.a), "b": gpu.smids(self.b)}
        self.blocks = 4 * gpu.sm_count
        self.image = ctypes.create_string_buffer(PTX.format(version="7.0", target="sm_70").encode())
        self.function = self.new_function()
        self._keep: list[Any] = []

    def new_function(self) -> Any:
        """A function of a module that is loaded in the current context."""
        loaded = self.driver.must("cuModuleLoadData", ctypes.addressof(self.image))
        return self.driver.must("cuModuleGetFunction", loaded, b"record_smids")

    @contextmanager
    def current(self, green: Green) -> Any:
        self.driver.must("cuCtxPushCurrent", green.ctx)
        try:
            yield
        finally:
            self.driver.must("cuCtxPopCurrent")

    def launch(self, function: Any, stream: Any, blocks: int = 0, attributes: dict[int, Any] | None = None) -> Code:
        config = self.module.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks or self.blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = THREADS, 1, 1
        config.hStream = self.module.CUstream(int(stream))
        made = []
        for kind, value in (attributes or {}).items():
            attribute = self.module.CUlaunchAttribute()
            attribute.id = self.driver.enum("CUlaunchAttributeID", kind)
            if kind == CLUSTER_DIMENSION:
                attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = value, 1, 1
            elif kind == COOPERATIVE:
                attribute.value.cooperative = value
            elif kind == PRIORITY:
                attribute.value.priority = value
            else:
                attribute.value.programmaticStreamSerializationAllowed = value
            made.append(attribute)
        config.attrs, config.numAttrs = made, len(made)
        return self.driver.code("cuLaunchKernelEx", config, function, self.gpu.arguments(SPIN_CYCLES), 0)

    def captured(self, stream: Any, *actions: Callable[[], Any]) -> Any:
        self.driver.must("cuStreamBeginCapture", stream, capture(self.gpu, "relaxed"))
        codes = [action() for action in actions]
        graph = self.driver.must("cuStreamEndCapture", stream)
        if any(code != 0 for code in codes):
            raise RuntimeError(f"the capture answered {codes}")
        return graph

    def of(self, function: Any, stream: Any = None, **options: Any) -> Any:
        """A graph of one launch of a kernel."""
        on = self.stream if stream is None else stream
        return self.captured(on, lambda: self.launch(function, on, **options))

    def nodes(self, graph: Any) -> list[Any]:
        found, count = self.driver.must("cuGraphGetNodes", graph, 64)
        return list(found)[: int(count)]

    def read(self, node: Any) -> Any:
        return self.driver.must("cuGraphKernelNodeGetParams", node)

    def shown(self, node: Any) -> Any:
        """Which handles of a kernel its parameters have, and the context that they name."""
        params = self.read(node)
        return {"func": bool(int(params.func)), "kern": bool(int(params.kern)), "ctx": self.who(params.ctx)}

    def who(self, ctx: Any) -> str:
        return who(self.gpu, ctx, a=self.a.ctx, b=self.b.ctx)

    def set(
        self, node: Any, ctx: Any, func: Any = None, kern: Any = None, typed: bool = False, both: bool = False
    ) -> Code:
        """Sets the parameters of a node to its own, in another context, and with another handle of the kernel.

        The kernel is named by its CUkernel where the node has one, and by the CUfunction too with `both`.
        """
        params = self.read(node)
        if func is None and kern is None:
            func = params.func if both or not int(params.kern) else None
            kern = params.kern if int(params.kern) else None
        names = [axis + "Dim" + letter for axis in ("grid", "block") for letter in "XYZ"]
        new = self.module.CUDA_KERNEL_NODE_PARAMS() if typed else self.module.CUgraphNodeParams()
        if not typed:
            new.type = self.driver.enum("CUgraphNodeType", KERNEL)
        target = new if typed else new.kernel
        for name in [*names, "sharedMemBytes", "kernelParams", "extra"]:
            setattr(target, name, getattr(params, name))
        if func is not None:
            target.func = func
        if kern is not None:
            target.kern = kern
        if ctx is not None:
            target.ctx = ctx
        return self.driver.code("cuGraphKernelNodeSetParams" if typed else "cuGraphNodeSetParams", node, new)

    def where(self, graph: Any, stream: Any = None) -> Any:
        """On which SMs a graph runs: those of a, of b, of the whole device, or how many others."""
        code, executable = self.driver.call("cuGraphInstantiate", graph, 0)
        if code != 0:
            return {"cuGraphInstantiate": code}
        return self.where_executable(executable, stream)

    def where_executable(self, executable: Any, stream: Any = None) -> Any:
        on = self.stream if stream is None else stream
        self.gpu.clear(self.stream)
        self.driver.must("cuStreamSynchronize", self.stream)
        code = self.driver.code("cuGraphLaunch", executable, on)
        if code != 0:
            return {"cuGraphLaunch": code}
        code = self.driver.code("cuStreamSynchronize", on)
        if code != 0:
            return {"cuStreamSynchronize": code}
        return self.named(self.gpu.marked())

    def named(self, seen: list[int]) -> str:
        names = {"whole": list(range(self.gpu.sm_count)), "none": []} | self.sms
        return next((name for name, sms in names.items() if sms == seen), f"{len(seen)} SMs")

    def moved(self, graph: Any, ctx: Any, **options: Any) -> Any:
        node = self.nodes(graph)[0]
        return {"set": self.set(node, ctx, **options), "shown": self.shown(node), "ran on": self.where(graph)}

    def cloned(self, graph: Any) -> Any:
        return self.driver.must("cuGraphClone", graph)

    def replaced(self, node: Any, function: Any, green: Green, graph: Any) -> Any:
        """A node whose kernel is captured again, on a stream of a partition, with what it waits for."""
        driver = self.driver
        before, _, count = driver.must("cuGraphNodeGetDependencies", node, 16)
        driver.must(
            "cuStreamBeginCaptureToGraph",
            green.stream,
            graph,
            list(before)[: int(count)],
            None,
            int(count),
            capture(self.gpu, "relaxed"),
        )
        code = self.launch(function, green.stream)
        info = driver.must("cuStreamGetCaptureInfo", green.stream)
        new = next(iter(info[3]))
        driver.must("cuStreamEndCapture", green.stream)
        after, _, count = driver.must("cuGraphNodeGetDependentNodes", node, 16)
        followers = list(after)[: int(count)]
        if followers:
            driver.must("cuGraphAddDependencies", graph, [new] * len(followers), followers, None, len(followers))
        return {"launch": code, "destroy": driver.code("cuGraphDestroyNode", node), "new": self.shown(new)}


def record_kernels(gpu: Gpu, note: Note) -> Any:
    """Nodes whose kernel is a CUkernel, of a library."""
    bench = Bench(gpu)
    a, b, kernel = bench.a, bench.b, bench.kernel
    graph = bench.of(kernel)
    note("captured", lambda: bench.shown(bench.nodes(graph)[0]))
    note("runs", lambda: bench.where(graph))
    note("a clone", lambda: bench.shown(bench.nodes(bench.cloned(graph))[0]))
    note("a clone moved to a", lambda: bench.moved(bench.cloned(graph), a.ctx))
    note("a clone moved to b by the older call", lambda: bench.moved(bench.cloned(graph), b.ctx, typed=True))
    note("a clone moved to a, by function and kernel", lambda: bench.moved(bench.cloned(graph), a.ctx, both=True))
    note("the graph itself afterwards", lambda: [bench.shown(bench.nodes(graph)[0]), bench.where(graph)])
    note("launched on a stream of b", lambda: bench.where(graph, b.stream))
    first = bench.driver.must("cuGraphInstantiate", graph, 0)
    note("moved to a", lambda: bench.moved(graph, a.ctx))
    note("moved on to b", lambda: bench.moved(graph, b.ctx))
    note("moved back to the primary context", lambda: bench.moved(graph, gpu.primary))
    note("no context is named, the primary one is current", lambda: bench.moved(graph, None))

    def unnamed() -> Any:
        with bench.current(a):
            return bench.moved(graph, None)

    note("no context is named, a is current", unnamed)
    note("an executable graph of the time before", lambda: bench.where_executable(first))
    green = bench.of(kernel, b.stream)
    note("captured on a stream of b", lambda: [bench.shown(bench.nodes(green)[0]), bench.where(green)])
    note("captured there, moved to a", lambda: bench.moved(green, a.ctx))
    note("captured there, moved to the primary context", lambda: bench.moved(green, gpu.primary))
    return note.answers


def record_executables(gpu: Gpu, note: Note) -> Any:
    """Executable graphs that are to be moved in place."""
    bench = Bench(gpu)
    graph = bench.of(bench.kernel)
    node = bench.nodes(graph)[0]
    executable = bench.driver.must("cuGraphInstantiate", graph, 0)
    parameters = bench.read(node)
    new = bench.module.CUgraphNodeParams()
    new.type = bench.driver.enum("CUgraphNodeType", KERNEL)
    for name in ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "kernelParams", "kern"):
        setattr(new.kernel, name, getattr(parameters, name))

    def in_place(ctx: Any) -> Code:
        new.kernel.ctx = ctx
        return bench.driver.code("cuGraphExecNodeSetParams", executable, node, new)

    def updated(graph: Any) -> Any:
        result = bench.module.cuGraphExecUpdate(executable, graph)
        return [int(result[0]), None if result[1] is None else int(result[1].result)]

    note("cuGraphExecNodeSetParams in its context", lambda: in_place(gpu.primary))
    note("cuGraphExecNodeSetParams in a", lambda: in_place(bench.a.ctx))
    note("it runs as before", lambda: bench.where_executable(executable))
    note("cuGraphExecUpdate by a clone", lambda: updated(bench.cloned(graph)))
    moved = bench.cloned(graph)
    bench.set(bench.nodes(moved)[0], bench.a.ctx)
    note("cuGraphExecUpdate by a moved clone", lambda: updated(moved))
    note("and it runs as before", lambda: bench.where_executable(executable))
    of_a = bench.driver.must("cuGraphInstantiate", moved, 0)
    bench.driver.must("cuGraphDestroy", moved)
    bench.driver.must("cuGraphDestroy", graph)
    note("an executable graph without its graph", lambda: bench.where_executable(of_a, bench.a.stream))
    return note.answers


def record_functions(gpu: Gpu, note: Note) -> Any:
    """Nodes whose kernel is a CUfunction, of a module."""
    bench = Bench(gpu)
    a, b, function = bench.a, bench.b, bench.function
    kern = bench.module.CUkernel(int(bench.kernel))

    def graph(stream: Any = None) -> Any:
        return bench.of(function, stream)

    def pushed(question: Callable[[], Any]) -> Any:
        with bench.current(a):
            return question()

    note("captured", lambda: [bench.shown(bench.nodes(graph())[0]), bench.where(graph())])
    note("moved to a", lambda: bench.moved(graph(), a.ctx))
    note("a clone moved to a", lambda: bench.moved(bench.cloned(graph()), a.ctx))
    note("moved to a by the older call", lambda: bench.moved(graph(), a.ctx, typed=True))
    note("a named, a current", lambda: pushed(lambda: bench.moved(graph(), a.ctx)))
    note("none named, a current", lambda: pushed(lambda: bench.moved(graph(), None, func=function)))
    note("a kernel in its place, in a", lambda: bench.moved(graph(), a.ctx, kern=kern))
    note("a kernel in its place in a clone, in a", lambda: bench.moved(bench.cloned(graph()), a.ctx, kern=kern))
    note(
        "captured on a stream of b",
        lambda: [bench.shown(bench.nodes(graph(b.stream))[0]), bench.where(graph(b.stream))],
    )
    note("captured there, moved to a", lambda: bench.moved(graph(b.stream), a.ctx))
    note("captured there, set again in b", lambda: bench.moved(graph(b.stream), b.ctx))
    note("captured there, moved to the primary context", lambda: bench.moved(graph(b.stream), gpu.primary))
    note("captured there, cloned", lambda: bench.where(bench.cloned(graph(b.stream))))
    note(
        "a function in the place of a kernel in a",
        lambda: bench.moved(bench.of(bench.kernel, a.stream), a.ctx, func=function),
    )

    def added(ctx: Any) -> Any:
        empty = bench.driver.must("cuGraphCreate", 0)
        parameters = bench.read(bench.nodes(graph())[0])
        new = bench.module.CUDA_KERNEL_NODE_PARAMS()
        for name in ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "kernelParams", "func"):
            setattr(new, name, getattr(parameters, name))
        if ctx is not None:
            new.ctx = ctx
        node = bench.driver.must("cuGraphAddKernelNode", empty, None, 0, new)
        return [bench.shown(node), bench.where(empty)]

    note("a node that is added", lambda: added(None))
    note("a node that is added in a", lambda: added(a.ctx))
    note("a node that is added, a current", lambda: pushed(lambda: added(None)))
    inner = pushed(bench.new_function)
    note(
        "of a module loaded in a, captured",
        lambda: [bench.shown(bench.nodes(bench.of(inner))[0]), bench.where(bench.of(inner))],
    )
    note("of a module loaded in a, moved to a", lambda: bench.moved(bench.of(inner), a.ctx))
    note("of a module loaded in a, captured on b", lambda: bench.where(bench.of(inner, b.stream)))
    # The function of a kernel: one for each context, or one for all?
    of_primary = bench.driver.must("cuKernelGetFunction", kern)
    of_a = pushed(lambda: bench.driver.must("cuKernelGetFunction", kern))
    note("functions of one kernel in two contexts are equal", lambda: int(of_primary) == int(of_a))
    note("a function of a kernel, captured", lambda: bench.shown(bench.nodes(bench.of(of_primary))[0]))
    note("a function of a kernel, moved to a", lambda: bench.moved(bench.of(of_primary), a.ctx))
    note(
        "a kernel's function of a, captured",
        lambda: [bench.shown(bench.nodes(bench.of(of_a))[0]), bench.where(bench.of(of_a))],
    )
    note("cuFuncGetName", lambda: bench.driver.must("cuFuncGetName", function).decode())
    note("cuFuncGetModule", lambda: bench.driver.code("cuFuncGetModule", function))
    return note.answers


def record_functions_captured_again(gpu: Gpu, note: Note) -> Any:
    """Nodes that are replaced by captures into their graph."""
    bench = Bench(gpu)
    a, function, stream = bench.a, bench.function, bench.stream

    def three() -> Any:
        """Three kernels in a row, of which the second is a function."""
        return bench.captured(
            stream,
            lambda: bench.launch(bench.kernel, stream, 1),
            lambda: bench.launch(function, stream),
            lambda: bench.launch(bench.kernel, stream, 1),
        )

    def alone() -> Any:
        graph = bench.cloned(bench.of(function))
        return [
            bench.replaced(bench.nodes(graph)[0], function, a, graph),
            bench.where(graph),
            bench.where(graph, a.stream),
        ]

    def between() -> Any:
        graph = bench.cloned(three())
        for node in bench.nodes(graph):
            if int(bench.read(node).kern):
                bench.set(node, a.ctx)
        at = next(node for node in bench.nodes(graph) if not int(bench.read(node).kern))
        answer = bench.replaced(at, function, a, graph)
        roots = int(bench.driver.must("cuGraphGetRootNodes", graph, 16)[1])
        edges = int(bench.driver.must("cuGraphGetEdges", graph, 16)[-1])
        return [answer, {"nodes": len(bench.nodes(graph)), "roots": roots, "edges": edges}, bench.where(graph)]

    def in_a_child() -> Any:
        parent = bench.driver.must("cuGraphCreate", 0)
        bench.driver.must("cuGraphAddChildGraphNode", parent, None, 0, bench.of(function))
        copy = bench.cloned(parent)
        inner = bench.driver.must("cuGraphChildGraphNodeGetGraph", bench.nodes(copy)[0])
        return [bench.replaced(bench.nodes(inner)[0], function, a, inner), bench.where(copy)]

    def in_a_child_by_kernel() -> Any:
        parent = bench.driver.must("cuGraphCreate", 0)
        bench.driver.must("cuGraphAddChildGraphNode", parent, None, 0, bench.of(bench.kernel))
        copy = bench.cloned(parent)
        inner = bench.driver.must("cuGraphChildGraphNodeGetGraph", bench.nodes(copy)[0])
        return [bench.set(bench.nodes(inner)[0], a.ctx), bench.where(copy), bench.where(parent)]

    note("alone", alone)
    note("between two others", between)
    note("a kernel in a child graph, moved", in_a_child_by_kernel)
    note("in a child graph", in_a_child)
    return note.answers


def record_attributes(gpu: Gpu, note: Note) -> Any:
    """Attributes of launches: whether a clone has them, whether they stay when a node is moved, and what fits."""
    bench = Bench(gpu)
    a, kernel, driver = bench.a, bench.kernel, bench.driver

    def attribute(node: Any, kind: int) -> Any:
        code, value = driver.call("cuGraphKernelNodeGetAttribute", node, driver.enum("CUlaunchAttributeID", kind))
        if code != 0:
            return code
        if kind in (CLUSTER_DIMENSION, 11):
            cluster = value.clusterDim if kind == CLUSTER_DIMENSION else value.preferredClusterDim
            return [cluster.x, cluster.y, cluster.z]
        names = {
            COOPERATIVE: "cooperative",
            PROGRAMMATIC: "programmaticStreamSerializationAllowed",
            PRIORITY: "priority",
        }
        return int(getattr(value, names[kind])) if kind in names else "ok"

    def all_of(node: Any) -> Any:
        return {name: attribute(node, kind) for name, kind in ATTRIBUTES.items()}

    def kept(**options: Any) -> Any:
        graph = bench.of(kernel, **options)
        copy = bench.cloned(graph)
        node = bench.nodes(copy)[0]
        answer = {"captured": all_of(bench.nodes(graph)[0]), "set": bench.set(node, a.ctx), "moved": all_of(node)}
        return answer | {"ran on": bench.where(copy)}

    note("none", lambda: kept())
    note("cooperative, 32 blocks", lambda: kept(blocks=32, attributes={COOPERATIVE: 1}))
    note("clusters of 2", lambda: kept(attributes={CLUSTER_DIMENSION: 2}))
    note("priority", lambda: kept(attributes={PRIORITY: -3}))

    def in_two() -> Any:
        green = Green(gpu, gpu.groups(2, 1)[:4])
        graph = bench.of(kernel, attributes={CLUSTER_DIMENSION: 8})
        copy = bench.cloned(graph)
        return {"set": bench.set(bench.nodes(copy)[0], green.ctx), "ran on": bench.where(copy)}

    note("clusters of 8 in four groups of 2", in_two)
    return note.answers


def record_cooperative(gpu: Gpu, note: Note) -> Any:
    """A cooperative launch that was captured for more blocks than the partition runs at once."""
    bench = Bench(gpu)
    copy = bench.cloned(bench.of(bench.kernel, blocks=33, attributes={COOPERATIVE: 1}))
    note("moved to 16 SMs", lambda: bench.set(bench.nodes(copy)[0], bench.a.ctx))
    code, executable = note("instantiated", lambda: [bench.driver.code("cuGraphInstantiate", copy, 0)])[0], None
    if code == 0:
        executable = bench.driver.must("cuGraphInstantiate", copy, 0)
        note("launched", lambda: bench.driver.code("cuGraphLaunch", executable, bench.a.stream))
        note("waited for", lambda: bench.driver.code("cuStreamSynchronize", bench.a.stream))
    return note.answers


def record_programmatic(gpu: Gpu, note: Note) -> Any:
    """An edge of a programmatic launch, which a clone keeps."""
    bench = Bench(gpu)
    stream, driver = bench.stream, bench.driver
    graph = bench.captured(
        stream,
        lambda: bench.launch(bench.kernel, stream),
        lambda: bench.launch(bench.kernel, stream, attributes={PROGRAMMATIC: 1}),
    )

    def edges(of: Any) -> Any:
        found = driver.must("cuGraphGetEdges", of, 16)
        return [[edge.from_port, edge.to_port, edge.type] for edge in list(found[2])[: int(found[3])]]

    copy = bench.cloned(graph)
    note("edges", lambda: edges(graph))
    note("edges of a clone", lambda: edges(copy))
    note("moved", lambda: [bench.set(node, bench.a.ctx) for node in bench.nodes(copy)])
    note("edges of the moved clone", lambda: edges(copy))
    note("ran on", lambda: bench.where(copy))
    return note.answers


def record_others(gpu: Gpu, note: Note) -> Any:
    """Nodes that are no kernels: whether a graph with them can be cloned, and whether they can be moved."""
    bench = Bench(gpu)
    driver, module, stream = bench.driver, bench.module, bench.stream
    device = [driver.must("cuMemAlloc", 1 << 20) for _ in range(2)]
    host = driver.must("cuMemAllocHost", 1 << 20)
    pageable = ctypes.create_string_buffer(1 << 20)
    event = driver.must("cuEventCreate", 2)
    driver.must("cuEventRecord", event, stream)

    def parameters(node: Any, kind: int, ctx: Any) -> Any:
        new = module.CUgraphNodeParams()
        new.type = driver.enum("CUgraphNodeType", kind)
        if kind == COPY:
            new.memcpy.copyParams, new.memcpy.copyCtx = driver.must("cuGraphMemcpyNodeGetParams", node), ctx
        else:
            fill = driver.must("cuGraphMemsetNodeGetParams", node)
            for name in ("dst", "pitch", "value", "elementSize", "width", "height"):
                setattr(new.memset, name, getattr(fill, name))
            new.memset.ctx = ctx
        return new

    def moved(graph: Any) -> Any:
        copy = bench.cloned(graph)
        node = bench.nodes(copy)[0]
        kind = int(driver.must("cuGraphNodeGetType", node))
        answer: dict[str, Any] = {"type": kind}
        if kind in (COPY, FILL):
            answer["set"] = driver.code("cuGraphNodeSetParams", node, parameters(node, kind, bench.a.ctx))
        code, executable = driver.call("cuGraphInstantiate", copy, 0)
        if code == 0:
            code = driver.code("cuGraphLaunch", executable, bench.a.stream)
            code = code or driver.code("cuStreamSynchronize", bench.a.stream)
        return answer | {"runs": code}

    def copied(name: str, *arguments: Any) -> Any:
        return lambda: moved(bench.captured(stream, lambda: driver.code(name, *arguments, stream)))

    note("a fill", copied("cuMemsetD32Async", device[0], 1, 1 << 18))
    note("a fill of rows", copied("cuMemsetD2D8Async", device[0], 1024, 1, 512, 512))
    note("a copy on the device", copied("cuMemcpyDtoDAsync", device[0], device[1], 1 << 20))
    note("a copy by unified addresses", copied("cuMemcpyAsync", device[0], device[1], 1 << 20))
    note("a copy from pinned memory", copied("cuMemcpyHtoDAsync", device[0], host, 1 << 20))
    note("a copy to pinned memory", copied("cuMemcpyDtoHAsync", host, device[0], 1 << 20))
    note("a copy from other memory", copied("cuMemcpyHtoDAsync", device[0], ctypes.addressof(pageable), 1 << 20))

    def added(function: str, *arguments: Any) -> Any:
        def ask() -> Any:
            graph = driver.must("cuGraphCreate", 0)
            driver.must(function, graph, None, 0, *arguments)
            return moved(graph)

        return ask

    note("nothing", added("cuGraphAddEmptyNode"))
    note("an event that is recorded", added("cuGraphAddEventRecordNode", event))
    note("an event that is waited for", added("cuGraphAddEventWaitNode", event))
    note("a child graph", added("cuGraphAddChildGraphNode", bench.of(bench.kernel)))

    def with_memory() -> Any:
        graph = driver.must("cuGraphCreate", 0)
        new = module.CUDA_MEM_ALLOC_NODE_PARAMS()
        new.poolProps.allocType = driver.enum("CUmemAllocationType", 1)
        new.poolProps.location.type = driver.enum("CUmemLocationType", 1)
        new.poolProps.location.id = 0
        new.bytesize = 1 << 20
        driver.must("cuGraphAddMemAllocNode", graph, None, 0, new)
        return {"cuGraphClone": driver.code("cuGraphClone", graph)}

    def with_condition() -> Any:
        graph = driver.must("cuGraphCreate", 0)
        handle = driver.must("cuGraphConditionalHandleCreate", graph, gpu.primary, 1, 1)
        new = module.CUgraphNodeParams()
        new.type = driver.enum("CUgraphNodeType", CONDITIONAL)
        new.conditional.handle = handle
        new.conditional.type = driver.enum("CUgraphConditionalNodeType", 0)
        new.conditional.size = 1
        new.conditional.ctx = gpu.primary
        driver.must("cuGraphAddNode", graph, None, None, 0, new)
        return {"cuGraphClone": driver.code("cuGraphClone", graph)}

    note("memory", with_memory)
    note("a condition", with_condition)
    return note.answers


def record_pace(gpu: Gpu, note: Note) -> Any:
    """How long fills and copies of 256 MiB take on the whole device and moved to 16 SMs: whether they move at all."""
    bench = Bench(gpu)
    driver, module, stream = bench.driver, bench.module, bench.stream
    size = 1 << 28
    memory = [driver.must("cuMemAlloc", size) for _ in range(2)]

    def milliseconds(graph: Any) -> Any:
        executable = driver.must("cuGraphInstantiate", graph, 0)
        begin, end = (driver.must("cuEventCreate", 0) for _ in range(2))
        times = []
        for _ in range(5):
            driver.must("cuEventRecord", begin, stream)
            driver.must("cuGraphLaunch", executable, stream)
            driver.must("cuEventRecord", end, stream)
            driver.must("cuEventSynchronize", end)
            times.append(driver.must("cuEventElapsedTime", begin, end))
        return round(sorted(times)[2], 4)

    def compared(action: Callable[[Any], Any], kind: int) -> Any:
        graph = bench.captured(stream, lambda: action(stream))
        copy = bench.cloned(graph)
        node = bench.nodes(copy)[0]
        new = module.CUgraphNodeParams()
        new.type = driver.enum("CUgraphNodeType", kind)
        if kind == COPY:
            new.memcpy.copyParams, new.memcpy.copyCtx = driver.must("cuGraphMemcpyNodeGetParams", node), bench.a.ctx
        else:
            fill = driver.must("cuGraphMemsetNodeGetParams", node)
            for name in ("dst", "pitch", "value", "elementSize", "width", "height"):
                setattr(new.memset, name, getattr(fill, name))
            new.memset.ctx = bench.a.ctx
        code = driver.code("cuGraphNodeSetParams", node, new)
        in_a = bench.captured(bench.a.stream, lambda: action(bench.a.stream))
        return {"set": code, "whole": milliseconds(graph), "moved": milliseconds(copy), "captured": milliseconds(in_a)}

    answer = {
        "fill": compared(lambda on: driver.code("cuMemsetD32Async", memory[0], 1, size // 4, on), FILL),
        "copy": compared(lambda on: driver.code("cuMemcpyDtoDAsync", memory[0], memory[1], size, on), COPY),
    }
    note("measured", lambda: answer)
    return note.answers
