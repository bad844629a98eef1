"""A plugin of pytest: writes the outcome of each test, and stands in for what a suite lacks outside its repository."""

from __future__ import annotations

import importlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

outcomes: dict[str, str] = {}


def test_name(nodeid: str) -> str:
    """A name that does not depend on where the suite lies."""
    file, separator, rest = nodeid.partition("::")
    return file.rsplit("tests/", 1)[-1] + separator + rest


def pytest_configure() -> None:
    # cuda.core's tests and its releases do not agree on where this name is.
    with suppress(ImportError):
        memory, place = importlib.import_module("cuda.core._memory"), importlib.import_module("cuda.core._memory._ipc")
        if not hasattr(memory, "IPCBufferDescriptor"):
            memory.IPCBufferDescriptor = place.IPCBufferDescriptor  # type: ignore[attr-defined]


def pytest_load_initial_conftests() -> None:
    # The tests of cuda.bindings import helpers that its wheel lacks, from the checkout that they are run in.
    helpers = Path.cwd().parent / "cuda" / "bindings"
    if (helpers / "_test_helpers").is_dir():
        importlib.import_module("cuda.bindings").__path__.append(str(helpers))


def pytest_runtest_logreport(report: Any) -> None:
    if getattr(report, "context", None) is not None:  # a part of a test, whose own report follows
        return
    name = test_name(report.nodeid)
    if report.failed:
        outcomes[name] = "failed"
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(getattr(report, "wasxfail", ""))
        outcomes.setdefault(name, f"skipped: {reason.removeprefix('Skipped: ')}")
    elif report.when == "call":
        outcomes.setdefault(name, "passed")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        Path(os.environ["CUDA_GCTX_OUTCOMES"]).write_text(json.dumps(outcomes))


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request: pytest.FixtureRequest) -> None:
    """An option of numba-cuda's command line, which its wheel lacks."""
    request.cls._dump_failed_filechecks = False
