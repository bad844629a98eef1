"""A plugin of pytest that notes which tests run which lines of a room of the package, and how long each test takes.

    CUDA_GCTX_CALLERS=FILE CUDA_GCTX_CALLED=ROOM pytest -p tests.callers TESTS

writes {"FILE:LINE": [[seconds, test]]}, the quickest test first, for each line that a test runs and for the first line
of each function that it calls. What runs in processes that a test starts is not seen: the tests that start any stand
under "processes".
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import cuda_gctx

PACKAGE = str(Path(cuda_gctx.__file__).parent) + os.sep
ROOM = os.path.join(PACKAGE, os.environ["CUDA_GCTX_CALLED"]) if "CUDA_GCTX_CALLED" in os.environ else PACKAGE
PROCESSES = "processes"
_seen: set[tuple[str, int]] = set()
_tests: dict[tuple[str, int], list[tuple[float, str]]] = defaultdict(list)


def _note(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
    """Sees each line of the room, and of other code each call."""
    if not frame.f_code.co_filename.startswith(ROOM):
        return None
    _seen.add((frame.f_code.co_filename, frame.f_lineno))
    return _note


def _note_process(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
        _seen.add((PACKAGE + PROCESSES, 0))


sys.addaudithook(_note_process)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _seen.clear()
    begin = time.monotonic()
    threading.settrace(_note)
    sys.settrace(_note)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        seconds = time.monotonic() - begin
        for place in _seen.copy():
            _tests[place].append((seconds, item.nodeid))


def pytest_sessionfinish() -> None:
    callers = {
        (f"{file.removeprefix(PACKAGE)}:{line}" if line else PROCESSES): sorted(tests)
        for (file, line), tests in _tests.items()
    }
    Path(os.environ["CUDA_GCTX_CALLERS"]).write_text(json.dumps(callers))
