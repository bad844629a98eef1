"""A plugin of pytest that notes which tests call which functions of the package, and how long each test takes.

    CUDA_GCTX_CALLERS=FILE pytest -p tests.callers TESTS

writes {"FILE:LINE": [tests]} for the first line of each function, the quickest test first. Processes that a test starts
are not seen.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

import cuda_gctx

PACKAGE = str(Path(cuda_gctx.__file__).parent) + os.sep
_called: set[CodeType] = set()
_tests: dict[CodeType, list[tuple[float, str]]] = defaultdict(list)


def _note(frame: FrameType, event: str, argument: object) -> None:
    """Sees each call, and asks for none of what is in it."""
    _called.add(frame.f_code)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _called.clear()
    begin = time.monotonic()
    threading.settrace(_note)
    sys.settrace(_note)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        seconds = time.monotonic() - begin
        for code in _called.copy():
            if code.co_filename.startswith(PACKAGE):
                _tests[code].append((seconds, item.nodeid))


def pytest_sessionfinish() -> None:
    callers = {
        f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_firstlineno}": [name for _, name in sorted(tests)]
        for code, tests in _tests.items()
    }
    Path(os.environ["CUDA_GCTX_CALLERS"]).write_text(json.dumps(callers))
