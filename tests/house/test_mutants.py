"""Every mutant of tests/mutants.py applies: its file is there, and its text is in it once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .. import mutants, native_mutants, random_mutants
from ..conftest import REPOSITORY
from ..trust import broken_claims


def test_every_mutant_applies() -> None:
    assert mutants.misfits() == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("def test_one(): pass", None),
        ("import os\ndef test_one(): os._exit(1)", "(exit code 1)"),
        pytest.param("", "no test is chosen", marks=pytest.mark.long),
        pytest.param("def test_one(): assert False", "::test_one", marks=pytest.mark.long),
        pytest.param("import nothing_of_this_name", "test_ends.py", marks=pytest.mark.long),
        pytest.param("import os\ndef test_one(): os.abort()", "(exit code -6)", marks=pytest.mark.long),
        pytest.param("def test_one():\n    while True: pass", "(not done after", marks=pytest.mark.long),
    ],
)
def test_every_end_of_tests_but_success_counts_as_noticed(tmp_path: Path, body: str, says: str | None) -> None:
    file = tmp_path / "test_ends.py"
    file.write_text(body)
    limit_s = 5 if "while True" in body else 300  # a busy machine needs seconds to begin
    try:
        answer = mutants.failed_test(f"--rootdir {tmp_path} -p no:faulthandler {file}", tmp_path, limit_s=limit_s)
    except SystemExit as error:
        answer = str(error)
    assert (answer is None) if says is None else (answer is not None and says in answer), answer


def test_every_mutant_of_the_core_and_of_the_claims_applies() -> None:
    assert native_mutants.misfits(native_mutants.MUTANTS) == []
    assert native_mutants.misfits(broken_claims.mutants()) == []


def test_random_mutants_of_the_planner_change_its_code() -> None:
    sites = random_mutants.planner_sites()
    assert {"<", "==", "&&", "!", "+", "0", "true"} <= {site.old() for site in sites}
    for site in sites:
        line = (REPOSITORY / "cuda_gctx" / site.file).read_text().splitlines()[site.line - 1]
        assert site.old() in line.partition("//")[0], site
        assert site.new != site.old(), site
        assert "#include" not in line, site


def test_what_random_mutants_left_alive_has_a_reason_or_a_test() -> None:
    survivors: dict[str, str | list[str]] = json.loads((REPOSITORY / "tests" / "survivors.json").read_text())
    tests = [name for value in survivors.values() if not isinstance(value, str) for name in value]
    assert all(survivors.values())
    # Whoever changes the line of one removes it: the next run says what lives.
    assert survivors.keys() - {str(site) for site in random_mutants.all_sites()} == set()
    assert [name for name in tests if f"def {name.split('::')[1]}(" not in text_of(name)] == []


def text_of(name: str) -> str:
    return (REPOSITORY / "tests" / name.split("::")[0]).read_text()
