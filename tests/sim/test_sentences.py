"""Sentences of the driver's header, tried on the software driver (sentences.py)."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from cuda_gctx.sim import library_path, session

from ..hardware.recorder.contract import FUNCTIONS, World
from .sentences import SEEDED, SENTENCES

pytestmark = pytest.mark.sim_only

CASES = [
    pytest.param(sentence, check, id=f"{function}: {sentence}")
    for function, found in SENTENCES.items()
    for sentence, check in found
]


@pytest.mark.parametrize(("sentence", "check"), CASES)
def test_a_sentence_of_the_header_holds(sentence: str, check: Any) -> None:
    with session("h200", "13.5", check=False):
        check(World(ctypes.CDLL(library_path())))


def test_half_of_the_functions_were_chosen_by_a_seed() -> None:
    assert SEEDED <= SENTENCES.keys() <= FUNCTIONS.keys()
    assert len(SENTENCES) >= 40
    assert 2 * len(SEEDED) >= len(SENTENCES) - 4
