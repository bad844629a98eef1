"""What the questions about single functions are asked with: one object of each kind, through ctypes alone."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

FUNCTIONS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "functions.json").read_text())
PTX = (
    b".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b32 variable;\n"
    b".visible .entry nothing() { ret; }\n\0"
)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
SM = 1
BUFFER_BYTES, MEMORY_BYTES = 4096, 4096


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
        self.version = 0
        self.made: dict[str, int] = {}
        self.keep: list[Any] = []
        self.must("cuInit", 0)
        version = ctypes.c_int()
        self.must("cuDriverGetVersion", ctypes.byref(version))
        self.version = version.value
        self["CUcontext"]
        self.must("cuCtxSetCurrent", self["CUcontext"])

    def code(self, name: str, *arguments: Any) -> int:
        try:
            function = getattr(self.library, name)
        except AttributeError:
            raise Unavailable(f"there is no {name}") from None
        if FUNCTIONS.get(name, {"since": 0})["since"] > self.version > 0:
            raise Unavailable(f"there is no {name}")
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

    def memory(self) -> int:
        made = self.out("cuMemAlloc_v2", MEMORY_BYTES)
        self.must("cuMemsetD8_v2", made, 0, MEMORY_BYTES)
        return made

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
    "CUdeviceptr": World.memory,
    "CUuserObject": lambda world: world.out("cuUserObjectCreate", None, nothing, 1, 1),
    "pinned": World.pinned,
}
