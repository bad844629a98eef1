"""No call of the driver keeps other threads of Python from running, except the quick ones of the current context."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .fronts import Front

PROGRAM = Path(__file__).with_name("every_call.py")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    front = Front(tmp_path_factory.mktemp("front"))
    child = subprocess.run(
        [sys.executable, PROGRAM, front.library, front.simulated],
        env=front.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,  # a call that keeps the GIL takes five seconds
    )
    assert child.returncode == 0, child.stderr
    answer: dict[str, Any] = json.loads(child.stdout)
    return answer


@pytest.mark.sim_only
def test_every_public_method_lets_python_run_during_its_driver_calls(outcome: dict[str, Any]) -> None:
    assert {name: seen["kept"] for name, seen in outcome.items() if seen["kept"]} == {}


@pytest.mark.sim_only
def test_every_public_method_was_called(outcome: dict[str, Any]) -> None:
    assert {name: seen["failed"] for name, seen in outcome.items() if seen["failed"]} == {}
    assert len(outcome) > 100
    for name in ("Stream.sync", "Event.is_done", "Stream.close", "a context is dropped", "Context.close", "probe"):
        assert outcome[name]["calls"], name
