"""The contract of each function (functions.json), asked of a driver: null pointers, values that no argument may have,
no context, a capture that is under way, a callback.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

from .world import CALLBACK, FUNCTIONS, MAKERS, PTX, Location, World, nothing

ACTIVE, INVALIDATED = 1, 2
# Handles that only a description makes, which no question needs to be right.
UNMADE = {"CUgraphConditionalHandle"}
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

    def __init__(self, symbol: str) -> None:
        self.symbol, self.row = symbol, FUNCTIONS[symbol]

    def refused(self, world: World) -> dict[str, int]:
        """Null pointers and values that are not allowed."""
        answers = {}
        for index in self.row["needed"]:
            given = arguments(world, self.symbol)
            given[index] = None
            answers[f"null {self.row['parameters'][index]}"] = world.code(self.symbol, *given)
        for rule in self.row["rules"]:
            if not rule.get("from", 0) <= world.version < rule.get("before", 2**31):
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

    def invalidated(self, world: World) -> dict[str, Any]:
        """With a stream whose capture is invalid."""
        given, stream = arguments(world, self.symbol), world["capturing"]
        if "CUstream" not in str(self.row["parameters"]) or self.symbol.startswith("cuStreamEndCapture"):
            return {}
        world.must("cuStreamBeginCapture_v2", stream, 0)
        world.code("cuStreamQuery", stream)
        assert status_of(world, stream) == INVALIDATED
        code = world.code(self.symbol, *(stream if one == world["CUstream"] else one for one in given))
        became = "invalidated" if status_of(world, stream) == INVALIDATED else "over"
        world.code("cuStreamEndCapture", stream, world.buffer())
        return {"invalid capture of its stream": [code, became]}

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

    ALL = (refused, without_context, captured, invalidated, called_back)
