"""The tuner's answers in worlds with known true times: seldom wrong where it is sure, and given where there is a gain.

A sample: `python tests/tune/worlds.py` runs all worlds 200 times.
"""

from __future__ import annotations

import pytest

from .worlds import ANSWERED, SLOW, WORLDS, is_bad, outcomes, row_of

RUNS = 6
# Latencies take long to draw: a run each is enough here.
FEW = {name: 1 for name in WORLDS if name.startswith("p99")}


@pytest.mark.parametrize("name", WORLDS)
def test_a_verdict_is_seldom_wrong_and_often_an_answer(name: str) -> None:
    found = outcomes(name, FEW.get(name, RUNS))
    assert not any(one.is_wrong for one in found)
    assert all(not one.sure or not one.raced.untried for one in found)
    if name in SLOW:
        assert not any(one.sure for one in found)
    if name in ANSWERED:
        assert sum(one.is_right for one in found) >= len(found) - 2


def test_a_campaign_counts_what_is_bad() -> None:
    [heat] = SLOW & {"heat, 10 s"}
    row = row_of(heat, outcomes(heat, 3))
    assert not is_bad(row)
    assert is_bad({**row, "sure": 1})
    assert is_bad({**row, "wrong": 2})
    gain = row_of("gain 3, noise 0.4%", outcomes("gain 3, noise 0.4%", 3))
    assert not is_bad(gain)
    assert is_bad({**gain, "right": 2})
