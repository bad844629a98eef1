"""Every mutant of tests/mutants.py applies: its file is there, and its text is in it once."""

from __future__ import annotations

from .. import mutants


def test_every_mutant_applies() -> None:
    assert mutants.misfits() == []
