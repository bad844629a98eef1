"""The program that runs other projects' suites: what it accepts, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from . import run

SUITE: dict[str, Any] = {
    "name": "some",
    "about": "Some tests.",
    "counts": {"13.0": {"passed": 2, "failed": 2, "skipped": 1, "causes": {"results": 2}, "skips": {"one card": 1}}},
    "causes": [{"cause": "results", "tests": ["test_a.py::test_add[*", "test_a.py::TestB::test_c[1-2]"]}],
    "skips": [{"cause": "one card", "reasons": ["needs * cards"]}],
}
OUTCOMES = {
    "test_a.py::test_add[1]": "failed",
    "test_a.py::TestB::test_c[1-2]": "failed",
    "test_a.py::test_d": "passed",
    "test_a.py::test_e": "passed",
    "test_a.py::test_f": "skipped: needs 2 cards",
}


def test_a_run_as_recorded_is_accepted() -> None:
    assert run.complaints(SUITE, "13.0", OUTCOMES) == []
    assert run.count(SUITE, OUTCOMES) == SUITE["counts"]["13.0"]


def test_fewer_passing_tests_are_refused() -> None:
    (complaint,) = run.complaints(SUITE, "13.0", {**OUTCOMES, "test_a.py::test_d": "skipped: needs 2 cards"})
    assert "1 tests pass on driver 13.0, 2 are recorded" in complaint


def test_a_test_that_fails_by_chance_may_fail() -> None:
    suite = copy.deepcopy(SUITE)
    suite["causes"].append({"cause": "addresses", "by_chance": True, "tests": ["test_a.py::test_d"]})
    unlucky = {**OUTCOMES, "test_a.py::test_d": "failed"}
    assert run.complaints(suite, "13.0", unlucky) == []
    assert len(run.complaints(suite, "13.0", {**unlucky, "test_a.py::test_e": "skipped: needs 2 cards"})) == 1


def test_a_failure_without_a_cause_is_refused_by_its_name() -> None:
    found = run.complaints(SUITE, "13.0", {**OUTCOMES, "test_a.py::TestB::test_c[1-23]": "failed"})
    assert found == ["test_a.py::TestB::test_c[1-23] fails on driver 13.0, and no cause names it"]


def test_a_skip_without_a_cause_is_refused_with_its_reason() -> None:
    (complaint,) = run.complaints(SUITE, "13.0", {**OUTCOMES, "test_a.py::test_f": "skipped: no such device"})
    assert complaint == "test_a.py::test_f is skipped: no such device on driver 13.0, and no cause names the reason"


def test_more_passing_tests_are_accepted_and_their_pattern_is_named() -> None:
    better = {**OUTCOMES, "test_a.py::test_add[1]": "passed"}
    assert run.complaints(SUITE, "13.0", better) == []
    assert run.unused_patterns(SUITE, [better]) == ["test_a.py::test_add[*"]


@pytest.mark.parametrize("name", run.SUITES)
def test_what_is_recorded_adds_up(name: str) -> None:
    suite = run.load(name)
    assert list(suite["counts"]) == suite["drivers"]
    causes = {cause["cause"] for cause in suite["causes"]}
    for counts in suite["counts"].values():
        assert sum(counts["causes"].values()) == counts["failed"]
        assert counts["causes"].keys() <= causes
        assert sum(counts["skips"].values()) == counts["skipped"]
