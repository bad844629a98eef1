"""The tuner's host clock: on the software driver it is the virtual one, so that no test depends on the host's speed."""

from __future__ import annotations

import time

import pytest

from cuda_gctx._core import clock
from cuda_software_driver._session import library

from ..conftest import is_simulated


@pytest.fixture(autouse=True)
def host_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Driver calls take virtual time, and nothing else does; a test that needs more lets time pass."""
    if is_simulated():
        monkeypatch.setattr(clock, "now", lambda: library().time_ns() / 1e9)


def host_takes(ns: int) -> None:
    """Let the host be busy for so long."""
    if is_simulated():
        library().advance(ns)
    else:
        time.sleep(ns / 1e9)
