"""Every mutant of tests/mutants.py applies: its file is there, and its text is in it once."""

from __future__ import annotations

import json

import pytest

from .. import mutants, native_mutants, random_mutants
from ..conftest import REPOSITORY
from ..trust import broken_claims


def test_every_mutant_applies() -> None:
    assert mutants.misfits() == []


@pytest.mark.long  # what needs a build of its own is tried every week
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
    assert [name for name in tests if f"def {name.split('::')[1]}(" not in text_of(name)] == []


def text_of(name: str) -> str:
    return (REPOSITORY / "tests" / name.split("::")[0]).read_text()
