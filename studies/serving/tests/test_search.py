"""The search finds the highest rate that is kept, with the best settings, and confirms it with other seeds."""

from __future__ import annotations

import pytest
from serving.search import GRID, goodput, highest


@pytest.mark.parametrize("limit", [0.1, 0.7, 1.0, 1.4, 19.0])
def test_the_highest_rate_of_the_grid_is_found_from_any_start(limit: float) -> None:
    for start in (0.5, 1.0, 2.0):
        found = highest(lambda rate: rate <= limit, start)
        assert found <= limit < found * GRID * 1.0001


def test_a_search_ends_where_all_or_nothing_is_kept() -> None:
    assert highest(lambda rate: False, 1.0) == 0.0
    assert highest(lambda rate: True, 1.0) > 5.0


def test_settings_that_come_later_have_to_beat_those_before_and_cost_one_trial_if_not() -> None:
    limits = {"a": 1.0, "b": 2.0, "c": 1.5}
    asked: list[tuple[str, float]] = []

    def keeps(settings: dict[str, str], rate: float, seed: int) -> bool:
        asked.append((settings["name"], rate))
        return rate <= limits[settings["name"]] * (0.5 if seed == 3 else 1.0)

    found = goodput([{"name": name} for name in limits], keeps, 0.7)
    assert found.settings == {"name": "b"}
    assert found.kept <= 2.0 < found.kept * GRID
    assert found.kept_by_all <= 1.0 < found.kept_by_all * GRID * GRID
    assert sum(name == "c" for name, _ in asked) == 1


def test_nothing_is_kept_with_any_settings() -> None:
    assert goodput([{}, {"b": 1}], lambda settings, rate, seed: False, 1.0) == ({}, 0.0, 0.0)
