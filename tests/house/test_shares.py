"""Shares of the tests, for machines that run them side by side."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ..conftest import REPOSITORY
from ..shares import deal, file_of, record, recorded_costs, share, without_share


def test_every_test_is_in_one_share_next_to_those_of_its_file() -> None:
    tests = [f"tests/test_{number % 30}.py::test_{number}" for number in range(100)]
    costs = {"tests/test_3.py": 7.0}
    shares = []
    for number in range(1, 8):
        items = [SimpleNamespace(nodeid=name) for name in tests]
        others = without_share(items, number, 7, costs)
        assert sorted(item.nodeid for item in items + others) == sorted(tests)
        assert not {file_of(item) for item in items} & {file_of(item) for item in others}
        shares.append([item.nodeid for item in items])
    assert sorted(name for names in shares for name in names) == sorted(tests)
    # The long file has a share of its own.
    assert sorted(len({name.partition("::")[0] for name in names}) for names in shares) == [1, 4, 5, 5, 5, 5, 5]


def test_shares_take_nearly_the_same_time() -> None:
    costs = recorded_costs()
    for shares in (2, 3, 4):
        seconds = [sum(costs[file] for file in dealt) for dealt in deal(costs, costs, shares)]
        assert round(max(seconds) - min(seconds), 6) <= min(costs.values())


def test_what_is_recorded_is_there() -> None:
    assert [file for file in recorded_costs() if not (REPOSITORY / file).is_file()] == [], "pytest --record-costs"


def test_files_that_run_are_recorded_and_the_others_stay(tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"tests/shares.py": 3.0, "tests/conftest.py": 2.0, "tests/gone.py": 9.0}))
    record({"tests/conftest.py": 0.1, "tests/common.py": 1.23}, costs)
    assert json.loads(costs.read_text()) == {"tests/common.py": 1.2, "tests/shares.py": 3.0}


@pytest.mark.parametrize("text", ["2", "0/3", "4/3", "0/0", "1/-1", "a/b", ""])
def test_a_share_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write NUMBER/OF, as in 2/20"):
        share(text)
