"""Shares of the tests, for machines that run them side by side."""

from __future__ import annotations

import argparse

import pytest

from ..conftest import share, without_share


def test_every_test_is_in_one_share() -> None:
    shares = []
    for number in range(1, 8):
        items = list(range(100))
        others = without_share(items, number, 7)
        assert sorted(items + others) == list(range(100))
        shares.append(items)
    assert sorted(item for items in shares for item in items) == list(range(100))
    assert {len(items) for items in shares} == {14, 15}


@pytest.mark.parametrize("text", ["2", "0/3", "4/3", "0/0", "1/-1", "a/b", ""])
def test_a_share_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write NUMBER/OF, as in 2/20"):
        share(text)
