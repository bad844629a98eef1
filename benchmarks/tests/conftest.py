"""Tests of the benchmarks, on the software driver: PYTHONPATH=build/raw pytest benchmarks/tests."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def pytest_configure(config: pytest.Config) -> None:
    if importlib.util.find_spec("raw_calls") is None:
        raise pytest.UsageError(
            "the module raw_calls is not on the path: run cmake -S benchmarks/raw -B build/raw, "
            "cmake --build build/raw, and then PYTHONPATH=build/raw pytest benchmarks/tests"
        )
    os.environ["CUDA_GCTX_DRIVER"] = "sim:h200@13.0"


@pytest.fixture
def sim() -> Iterator[Callable[..., Any]]:
    """A function that makes simulated machines, which are checked for leaks when the test ends."""
    from cuda_software_driver import session

    with ExitStack() as sessions:
        yield lambda *args, **kwargs: sessions.enter_context(session(*args, **kwargs))
