"""No call of the package takes more instructions than are recorded for this interpreter and these compilers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "instructions.py"


@pytest.fixture
def instructions(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("instructions", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "instructions", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.sim_only
def test_no_call_takes_more_instructions_than_recorded(instructions: ModuleType) -> None:
    if reason := instructions.missing():
        pytest.skip(reason)
    recorded = instructions.records().get(instructions.toolchain())
    if recorded is None:
        pytest.skip(f"no record for {instructions.toolchain()}: 'make instructions' writes one")
    measured = instructions.measure()
    assert measured.keys() == recorded.keys(), "the calls have changed: 'make instructions' records them"
    dearer = instructions.dearer(recorded, measured)
    assert not dearer, "\n".join([*dearer, "if that is meant, 'make instructions' records it"])


def test_a_measurement_that_is_not_possible_ends_with_the_reason(
    instructions: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(instructions, "CORE", tmp_path / "libcuda_gctx.so")
    monkeypatch.setattr(sys, "argv", ["instructions.py"])
    with pytest.raises(SystemExit, match=r"the install is editable: 'make \.venv/package' installs"):
        instructions.main()


def test_more_than_the_tolerance_is_seen(instructions: ModuleType) -> None:
    recorded = {"a": 1000, "b": 1000, "c": 10}
    assert instructions.dearer(recorded, {"a": 1044, "b": 900, "c": 24}) == []
    assert instructions.dearer(recorded, {"a": 1046, "b": 1000, "c": 10}) == ["a: 1046 instructions, 1000 recorded"]


def test_a_dump_is_counted_without_the_software_driver_and_without_the_costs_of_callees(
    instructions: ModuleType,
) -> None:
    dump = """
part: 2
positions: line
events: Ir
ob=(1) /somewhere/libcuda_gctx.so
fl=(1) stream.cpp
fn=(1) record
10 5
+3 2
cob=(2) /somewhere/sim/lib/libcuda_gctx_sim.so
cfn=(2) cuEventRecord
calls=1 0
* 1000
ob=(2)
fn=(2)
0 900
ob=(1)
fn=(3) wait
-2 4
totals: 911
"""
    assert instructions.instructions_of(dump) == 5 + 2 + 4
