"""Shares of the tests, for machines that run them side by side."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ..conftest import REPOSITORY
from ..shares import deal, record, recorded_costs, share


def test_every_file_is_in_one_share() -> None:
    files = [f"tests/test_{number}.py" for number in range(30)]
    dealt = deal(files, {"tests/test_3.py": 7.0}, 7)
    assert sorted(file for share in dealt for file in share) == sorted(files)
    # The long file has a share of its own.
    assert sorted(map(len, dealt)) == [1, 4, 5, 5, 5, 5, 5]


def test_shares_have_all_tests_together() -> None:
    files = {"tests/outside/test_programs.py", "tests/outside/test_releases.py", "tests/core/test_versions.py"}
    shares = []
    for number in (1, 2):
        run = [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            "--collect-only",
            "-qq",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:anyio",
        ]
        run += [f"--share={number}/2", "tests/outside", "tests/core/test_versions.py"]
        done = subprocess.run(run, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        shares.append(set(re.findall(r"^(tests/.*): \d+$", done.stdout, re.MULTILINE)))
    one, other = shares
    assert one
    assert other
    assert one | other == files
    assert not one & other


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


def test_shares_that_end_at_the_same_time_are_all_recorded(tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text("{}")
    files = sorted(file.relative_to(REPOSITORY).as_posix() for file in (REPOSITORY / "tests" / "core").glob("*.py"))
    before = threading.Barrier(len(files))

    def share_of(file: str) -> None:
        before.wait()
        record({file: 1.0}, costs)

    with ThreadPoolExecutor(len(files)) as pool, costs.open() as earlier:
        list(pool.map(share_of, files))
        assert earlier.read() == "{}"  # one that reads it meanwhile
    assert json.loads(costs.read_text()) == dict.fromkeys(files, 1.0)


@pytest.mark.parametrize("text", ["2", "0/3", "4/3", "0/0", "1/-1", "a/b", ""])
def test_a_share_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write NUMBER/OF, as in 2/20"):
        share(text)
