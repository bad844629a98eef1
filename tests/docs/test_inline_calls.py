"""A call in a sentence of a page is one that a reader can make: its names exist, and it takes these arguments."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import cuda_gctx
import cuda_software_driver
from cuda_gctx import Device, PartitionPool, Timeline, tune
from cuda_gctx.comm import MixedCommHandler
from cuda_gctx.compat.torch_green import GreenContext
from cuda_gctx.measure.timeline import Trace
from cuda_gctx.partitions.sm_map import SMMap
from cuda_gctx.tune import Plan, Report
from cuda_software_driver import Session, session

from ..conftest import REPOSITORY
from .test_pages import READ

pytestmark = pytest.mark.sim_only

# What a name stands for on every page, unless it is an object that `names` makes: a class.
CLASSES: dict[str, type] = {
    "report": Report,
    "plan": Plan,
    "trace": Trace,
    "timeline": Timeline,
    "sm_map": SMMap,
    "graphs": cuda_gctx.GraphSet,
    "handler": MixedCommHandler,
    "gpu_sim": Session,
    "Report": Report,
    "Timeline": Timeline,
}
# Calls of cuda.core, in a table that compares it.
OF_OTHERS = {"system.get_num_devices()"}
# Names of others, and of the program on the page.
FOREIGN = {"torch", "cuda", "logging", "x", "tensor", "green", "buffer", "decisions", "gctx", "capture", "comm", "a"}
FUNCTIONS = ("interop.torch", "interop.cupy", "interop.nccl", "interop.launch_order", "interop.library_sms")


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    with ExitStack() as closing:
        closing.enter_context(session("h200"))
        dev = Device()
        parts = closing.enter_context(dev.partition(urgent=8, control=16, bulk=8, rest=16))
        part = parts.control
        pool = closing.enter_context(PartitionPool(dev))
        found = {name: getattr(cuda_gctx, name) for name in cuda_gctx.__all__}
        for room in (cuda_software_driver, *(importlib.import_module(f"cuda_gctx.{module}") for module in FUNCTIONS)):
            found |= {name: getattr(room, name) for name in room.__all__}
        found |= CLASSES
        found |= {"cuda_gctx": cuda_gctx, "tune": tune, "system": cuda_gctx.system}
        found |= {"dev": dev, "parts": parts, "part": part, "pool": pool, "sm": dev.resources.sm}
        found |= {"ctx": part.context, "context": part.context, "stream": part.stream}
        yield found


def calls_of(text: str) -> Iterator[tuple[str, ast.Call]]:
    """The calls in the inline code of a page, with their code."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for code in re.findall(r"`([^`\n]+)`", prose):
        for whole in (code, f"{code} pass", f"{code}: pass"):
            try:
                tree = ast.parse(whole)
            except SyntaxError:
                continue
            yield from ((code, node) for node in ast.walk(tree) if isinstance(node, ast.Call))
            break


def resolved(path: str, names: dict[str, Any]) -> object:
    """What a dotted name is; AttributeError if it is nothing, TypeError if only an object would have it."""
    first, *rest = path.split(".")
    found = names[first]
    for name in rest:
        if isinstance(found, property):
            raise TypeError(f"{path} is known of an object only")
        if inspect.ismodule(found) and not hasattr(found, name):
            importlib.import_module(f"{found.__name__}.{name}")
        found = getattr(found, name)
    return found


def problem(call: ast.Call, names: dict[str, Any]) -> str | None:
    """Why a call cannot be made as it stands, or None."""
    path = ast.unparse(call.func)
    first = path.split(".")[0]
    if (
        ast.unparse(call) in OF_OTHERS
        or not re.fullmatch(r"\w+(\.\w+)*", path)
        or first in FOREIGN
        or first not in names
    ):
        return None
    try:
        thing: Any = resolved(path, names)
        signature = inspect.signature(thing)
    except (AttributeError, ImportError) as error:
        return str(error)
    except (TypeError, ValueError):  # also a compiled function without a signature
        return None
    given = [argument for argument in call.args if not (isinstance(argument, ast.Constant) and argument.value is ...)]
    of_class = inspect.isfunction(thing) and "." in thing.__qualname__ and inspect.isclass(names.get(first))
    positional = [object()] * (len(given) + of_class)
    keywords = {keyword.arg: object() for keyword in call.keywords if keyword.arg}
    try:
        signature.bind_partial(*positional, **keywords)
    except TypeError as error:
        return str(error)
    return None


# Where a name stands for something else than on the other pages.
ELSEWHERE: dict[str, dict[str, Any]] = {
    "guide": {"report": cuda_gctx.VerifyReport},
    "drop-ins": {"ctx": GreenContext},
}


@pytest.mark.parametrize("page", [*READ, "../README"])
def test_a_call_in_a_sentence_can_be_made(page: str, names: dict[str, Any]) -> None:
    text = (REPOSITORY / "docs" / f"{page}.md").read_text()
    names |= ELSEWHERE.get(page, {})
    found = [(code, problem(call, names)) for code, call in calls_of(text)]
    assert [f"{code}: {why}" for code, why in found if why is not None] == []


@pytest.mark.parametrize(
    "code",
    [
        "parts.verify_all()",
        "with parts.control.pytorch():",
        "system.release_contexts(pin=True)",
        "cuda_gctx.interop.torch.torch_streams(part)",
        "report.svgs(path)",
    ],
)
def test_a_call_that_nobody_can_make_is_found(code: str, names: dict[str, Any]) -> None:
    found = [problem(call, names) for _, call in calls_of(f"Use `{code}`.")]
    assert any(found)
