"""The contract of each function, asked of a driver: null pointers, values that no argument may have, no context, a
capture that is under way, a callback. Uses ctypes and functions.json alone, and asks about one function a process.

    python tests/hardware/recorder/contract.py cuStreamCreate
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FUNCTIONS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "functions.json").read_text())
PTX = (
    b".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b32 variable;\n"
    b".visible .entry nothing() { ret; }\n\0"
)
# Not asked: what resets the device, managed memory, and what belongs to other tools.
SKIPPED = re.compile(
    r"cuDevicePrimaryCtxReset|cuMemAllocManaged|cuMemAdvise|cuMemPrefetch|cuMemDiscard|cuMemRange|cuStreamAttach"
    r"|cuGetExportTable|cuProfiler"
)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
RESOURCE_BYTES, SM, ACTIVE = 144, 1, 1
BUFFER_BYTES, MEMORY_BYTES = 4096, 4096
SECONDS = 20


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


@CALLBACK
def nothing(_: Any) -> None:
    pass


class Unavailable(Exception):
    """The driver does not make what a question needs."""


class World:
    """One object of each kind, made when it is asked for, with the primary context current."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.made: dict[str, int] = {}
        self.keep: list[Any] = []
        self.must("cuInit", 0)
        self["CUcontext"]
        self.must("cuCtxSetCurrent", self["CUcontext"])

    def code(self, name: str, *arguments: Any) -> int:
        try:
            function = getattr(self.library, name)
        except AttributeError:
            raise Unavailable(name) from None
        return int(function(*(ctypes.c_void_p(one) if isinstance(one, int) else one for one in arguments)))

    def must(self, name: str, *arguments: Any) -> None:
        code = self.code(name, *arguments)
        if code != 0:
            raise Unavailable(f"{name} answered {code}")

    def out(self, name: str, *arguments: Any) -> int:
        value = ctypes.c_uint64()
        self.must(name, ctypes.byref(value), *arguments)
        return value.value

    def __getitem__(self, kind: str) -> int:
        if kind not in self.made:
            self.made[kind] = MAKERS[kind](self)
        return self.made[kind]

    def buffer(self, content: bytes = b"") -> Any:
        made = ctypes.create_string_buffer(max(BUFFER_BYTES, len(content)))
        made.raw = content + bytes(len(made.raw) - len(content))
        self.keep.append(made)
        return made

    def resource(self) -> Any:
        made = self.buffer()
        self.must("cuDeviceGetDevResource", 0, made, SM)
        return made

    def green(self) -> int:
        return self.out("cuGreenCtxCreate", self["CUdevResourceDesc"], 0, 1)

    def node(self) -> int:
        return self.out("cuGraphAddEmptyNode", self["CUgraph"], None, 0)

    def array(self, levels: int = 0) -> int:
        # Width, height, depth, format (32-bit floats), channels, flags (surfaces).
        words = (64).to_bytes(8, "little") * 2 + bytes(8)
        shape = self.buffer(
            words + (0x20).to_bytes(4, "little") + (1).to_bytes(4, "little") + (2).to_bytes(4, "little")
        )
        return self.out("cuMipmappedArrayCreate", shape, levels) if levels else self.out("cuArray3DCreate_v2", shape)

    def pinned(self) -> int:
        return self.out("cuMemHostAlloc", MEMORY_BYTES, 0)

    def event(self) -> int:
        event = self.out("cuEventCreate", 0)
        self.must("cuEventRecord", event, self["CUstream"])
        self.must("cuStreamSynchronize", self["CUstream"])
        return event


MAKERS: dict[str, Callable[[World], int]] = {
    "CUdevice": lambda world: 0,
    "CUcontext": lambda world: world.out("cuDevicePrimaryCtxRetain", 0),
    "CUdevResourceDesc": lambda world: world.out("cuDevResourceGenerateDesc", world.resource(), 1),
    "CUgreenCtx": World.green,
    "CUstream": lambda world: world.out("cuStreamCreate", 1),
    "capturing": lambda world: world.out("cuStreamCreate", 1),
    "CUevent": World.event,
    "CUgraph": lambda world: world.out("cuGraphCreate", 0),
    "CUgraphNode": World.node,
    "CUgraphExec": lambda world: world.out("cuGraphInstantiateWithFlags", world["CUgraph"], 0),
    "CUmodule": lambda world: world.out("cuModuleLoadData", world.buffer(PTX)),
    "CUfunction": lambda world: world.out("cuModuleGetFunction", world["CUmodule"], b"nothing"),
    "CUlibrary": lambda world: world.out("cuLibraryLoadData", world.buffer(PTX), None, None, 0, None, None, 0),
    "CUkernel": lambda world: world.out("cuLibraryGetKernel", world["CUlibrary"], b"nothing"),
    "CUmemoryPool": lambda world: world.out("cuDeviceGetDefaultMemPool", 0),
    "CUdeviceptr": lambda world: world.out("cuMemAlloc_v2", MEMORY_BYTES),
    "CUarray": World.array,
    "CUmipmappedArray": lambda world: world.array(levels=2),
    "CUuserObject": lambda world: world.out("cuUserObjectCreate", None, nothing, 1, 1),
    "pinned": World.pinned,
}
# Handles that only a description makes, which no question needs to be right.
UNMADE = {"CUtexObject", "CUsurfObject", "CUgraphConditionalHandle"}
PINNED = {"cuMemFreeHost", "cuMemHostGetDevicePointer_v2", "cuMemHostGetFlags", "cuMemHostUnregister"}


def arguments(world: World, symbol: str) -> list[Any]:
    """Arguments of the right kinds, which the contract allows."""
    row = FUNCTIONS[symbol]
    given: list[Any] = []
    for index, parameter in enumerate(row["parameters"]):
        kind, name = re.split(r"[ *]+(?=\w+$)", parameter.removeprefix("const "))
        lows = [rule["values"][0] for rule in row["rules"] if rule["kind"] == "range" and rule["index"] == index]
        flags = any(rule["index"] == index and rule["kind"] != "range" for rule in row["rules"])
        if symbol in PINNED and parameter.startswith("void *"):
            given.append(world["pinned"])
        elif "*" in parameter:
            text = PTX if name in ("image", "code") else b"/dev/null\0" if kind == "char" else b""
            is_resource = kind == "CUdevResource" and name in ("input", "resources")
            given.append(world.resource() if is_resource else world.buffer(text))
        elif kind in MAKERS:
            given.append(world[kind])
        elif kind in ("CUhostFn", "CUstreamCallback", "CUoccupancyB2DSize"):
            given.append(nothing)
        elif kind == "CUmemLocation":
            given.append(Location(1, 0))
        elif lows:
            given.append(lows[-1])
        elif flags or kind in UNMADE:
            given.append(0)
        else:
            given.append(64 if kind == "size_t" else 1 if kind.startswith("CU") or "DimX" in name else 0)
    if "launch" in symbol.lower():
        given = [1 if "Dim" in parameter else one for parameter, one in zip(row["parameters"], given, strict=True)]
    return given


def wrong_value(rule: dict[str, Any], parameter: str) -> int | None:
    """A number that the rule excludes, if the type has one."""
    top = 2**64 - 1 if re.match(r"size_t|cuuint64_t|unsigned long long", parameter) else 2**32 - 1
    low, high = (*rule["values"], 0)[:2]
    if rule["kind"] == "flags":
        return next((1 << bit for bit in range(top.bit_length()) if not low >> bit & 1), None)
    if rule["kind"] == "implies":
        return int(low)
    if rule["kind"] == "single":
        return low & 3 if (low & 3).bit_count() == 2 else low
    return high + 1 if high < top else low - 1 if low > 0 else None


def status_of(world: World, stream: int) -> int:
    status = ctypes.c_int(-1)
    world.must("cuStreamIsCapturing", stream, ctypes.byref(status))
    return status.value


class Questions:
    """What is asked about one function; each question needs a world of its own, or leaves this one as it was."""

    def __init__(self, symbol: str, version: int) -> None:
        self.symbol, self.row, self.version = symbol, FUNCTIONS[symbol], version

    def refused(self, world: World) -> dict[str, int]:
        """Null pointers and values that are not allowed."""
        answers = {}
        for index in self.row["needed"]:
            given = arguments(world, self.symbol)
            given[index] = None
            answers[f"null {self.row['parameters'][index]}"] = world.code(self.symbol, *given)
        for rule in self.row["rules"]:
            if not rule.get("from", 0) <= self.version < rule.get("before", 2**31):
                continue
            parameter = self.row["parameters"][rule["index"]]
            value = wrong_value(rule, parameter)
            if value is not None:
                given = arguments(world, self.symbol)
                given[rule["index"]] = value
                answers[f"{parameter} {value:#x}"] = world.code(self.symbol, *given)
        return answers

    def captured(self, world: World) -> dict[str, Any]:
        """Beside a capture of another stream, and with the stream that is capturing: the code, and what it became."""
        answers: dict[str, Any] = {}
        stream = world["capturing"]
        own = "capture of its stream" if "CUstream" in str(self.row["parameters"]) else None
        for name in ("capture", own):
            given = arguments(world, self.symbol)
            if name == own:
                given = [stream if one == world["CUstream"] else one for one in given]
            if name is None or self.symbol.startswith("cuStreamEndCapture"):
                continue
            world.must("cuStreamBeginCapture_v2", stream, 0)
            code = world.code(self.symbol, *given)
            answers[name] = [code, "active" if status_of(world, stream) == ACTIVE else "invalidated"]
            world.code("cuStreamEndCapture", stream, world.buffer())
        return answers

    def called_back(self, world: World) -> dict[str, int]:
        given, answers = arguments(world, self.symbol), {}

        @CALLBACK
        def function(_: Any) -> None:
            answers["callback"] = world.code(self.symbol, *given)

        stream = world["capturing"]
        world.must("cuLaunchHostFunc", stream, function, None)
        world.must("cuStreamSynchronize", stream)
        return answers

    def without_context(self, world: World) -> dict[str, int]:
        given = arguments(world, self.symbol)
        world.must("cuCtxSetCurrent", None)
        return {"no context": world.code(self.symbol, *given)}

    ALL = (refused, without_context, captured, called_back)


def version_of(world: World) -> int:
    version = ctypes.c_int()
    world.must("cuDriverGetVersion", ctypes.byref(version))
    return version.value


def ask(symbol: str, library: Any, question: Any) -> dict[str, Any]:
    try:
        world = World(library)
        version = version_of(world)
        if FUNCTIONS[symbol]["since"] > version:
            return {}
        return dict(question(Questions(symbol, version), world))
    except Unavailable as why:
        return {question.__name__: str(why)}


def asked_in_children(symbol: str) -> dict[str, Any]:
    """Every question in a process of its own: what a call breaks, the next one does not see."""
    answers: dict[str, Any] = {}
    for question in Questions.ALL:
        name = question.__name__
        command = [sys.executable, str(Path(__file__).resolve()), symbol, name]
        try:
            done = subprocess.run(command, capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            answers[name] = f"no answer in {SECONDS} s"
            continue
        if done.returncode != 0:
            code = done.returncode
            answers[name] = signal.Signals(-code).name if code < 0 else f"exit {code}"
            continue
        answers.update(json.loads(done.stdout))
    return answers


def record_contract(_: Any, note: Any) -> Any:
    names = [symbol for symbol in FUNCTIONS if not SKIPPED.match(symbol)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for symbol, answers in zip(names, pool.map(asked_in_children, names), strict=True):
            note.answers[symbol] = answers
            note.save()
    return note.answers


if __name__ == "__main__":
    wanted = sys.argv[2] if len(sys.argv) > 2 else "refused"
    chosen = next(one for one in Questions.ALL if one.__name__ == wanted)
    print(json.dumps(ask(sys.argv[1], ctypes.CDLL("libcuda.so.1"), chosen)), flush=True)
    os._exit(0)
