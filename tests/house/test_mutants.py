"""Every mutant of tests/mutants.py applies: its file is there, and its text is in it once."""

from __future__ import annotations

import pytest

from .. import mutants, native_mutants
from ..trust import broken_claims


def test_every_mutant_applies() -> None:
    assert mutants.misfits() == []


@pytest.mark.long  # what needs a build of its own is tried every week
def test_every_mutant_of_the_core_and_of_the_claims_applies() -> None:
    assert native_mutants.misfits(native_mutants.MUTANTS) == []
    assert native_mutants.misfits(broken_claims.mutants()) == []
