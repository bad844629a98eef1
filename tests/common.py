"""What several test files need: splits and contexts in one line, an error without its traceback, Python in a child."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from cuda_gctx import Context, ContextOptions, Device, SMResource, SMResourceOptions, system

from .conftest import REPOSITORY

DRIVERS = ["12.4", "12.5", "12.8", "13.0", "13.1", "13.4"]  # those that have green contexts
OLD_DRIVERS = ["12.4", "12.5", "12.8", "13.0"]  # without the structured split
NEW_DRIVERS = ["13.1", "13.4"]

Counts = int | Sequence[int | None] | None
Kind = TypeVar("Kind", bound=BaseException)
Answer = TypeVar("Answer")


def tool(name: str) -> ModuleType:
    """A program of tools/, as a module."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The folder of a cuda.h with which the package can be built, which the package itself does not need.
CUDA_INCLUDE: Path | None = tool("requirements").cuda_include()
needs_cuda_header = pytest.mark.skipif(
    CUDA_INCLUDE is None, reason="no cuda.h of CUDA 13.5 or newer: pip install 'nvidia-cuda-runtime>=13.5,<14'"
)


def split(resource: SMResource, count: Counts, **options: Any) -> tuple[list[SMResource], SMResource]:
    return resource.split(SMResourceOptions(count, **options))


def sizes(groups: Sequence[SMResource], remainder: SMResource) -> tuple[list[int], int]:
    return [group.sm_count for group in groups], remainder.sm_count


def green(dev: Device, *resources: Any, **options: Any) -> Context:
    return dev.create_context(ContextOptions(resources=list(resources), **options))


def small_contexts(dev: Device, number: int) -> list[Context]:
    """Green contexts of the smallest size, disjoint."""
    whole = dev.resources.sm
    groups, _ = split(whole, [whole.min_partition_size] * number)
    return [green(dev, group) for group in groups]


def refusal(kind: type[Kind], action: Callable[[], object]) -> Kind:
    """The error that an action raises. Without its traceback, whose frames would keep driver objects alive."""
    try:
        answer = action()
    except kind as error:
        return error.with_traceback(None)
    raise AssertionError(f"no {kind.__name__}, but {answer!r}")


def for_each(
    *axes: Iterable[Any], name: Callable[[Any], str] = str
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Makes a check of one case a test of them all: every combination of the values of some axes.

    The test fails with a list of the cases that do not pass, each with what is wrong.
    """
    cases = list(itertools.product(*axes))

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            assert cases, "there is no case"
            failures = []
            for case in cases:
                try:
                    check(*case)
                except Exception as error:
                    failures.append(f"{', '.join(map(name, case))}: {type(error).__name__}: {error}")
            if failures:
                pytest.fail(f"{len(failures)} of {len(cases)} cases:\n" + "\n".join(failures), pytrace=False)

        # Not functools.wraps: pytest would look for fixtures of the names of the check's arguments.
        test.__name__, test.__qualname__ = check.__name__, check.__qualname__
        test.__module__, test.__doc__ = check.__module__, check.__doc__
        return test

    return decorate


def on_another_thread(action: Callable[[], Answer]) -> Answer:
    """What an action gives on a thread of its own, or what it raises there."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend([True, action()])
        except BaseException as error:  # raised again where the test sees it
            outcome.extend([False, error.with_traceback(None)])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    worked, answer = outcome
    if not worked:
        raise answer
    return answer


def run_python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a child; a hanging one is killed."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )


def run_with_cuda_core(code: str, *arguments: str, machine: str = "h200@13.0") -> subprocess.CompletedProcess[str]:
    """Runs a program in a child in which both cuda.core and this package use one simulated machine."""
    import cuda_software_driver as sim

    return run_python(
        code,
        *arguments,
        LD_LIBRARY_PATH=sim.library_folder(),
        CUDA_GCTX_DRIVER=sim.library_path(),
        CUDA_SOFTWARE_DRIVER_MACHINE=machine,
        CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING="1",
    )


def leases() -> int:
    """The number of green contexts of all devices that are open or lingering."""
    return sum(use.open + use.lingering for use in system.memory().values())
