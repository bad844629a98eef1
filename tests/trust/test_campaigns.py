"""The page Reliability is what its program writes from campaigns.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..outside.test_programs import DRIVERS
from . import campaigns


def test_the_page_is_up_to_date() -> None:
    assert campaigns.PAGE.read_text() == campaigns.page()


def test_its_first_sentence_says_what_never_ran_on_hardware() -> None:
    _, _, text = campaigns.page().partition("# Reliability\n\n")
    first = text.partition("\n")[0]
    assert first.startswith("**Never run on hardware:** ")
    for one in json.loads(campaigns.CAMPAIGNS.read_text())["campaigns"]:
        assert one.get("never", "") in first
        assert (one["group"] == "card") <= ("never" not in one)


def test_what_found_nothing_has_no_row_of_a_table() -> None:
    rows = [one for one in json.loads(campaigns.CAMPAIGNS.read_text())["campaigns"] if "found" in one]
    assert rows
    assert not [one["what"] for one in rows if one["found"].startswith(("nothing", "no report"))]


def test_public_programs_are_counted_on_the_drivers_that_they_run_on() -> None:
    [head, _, programs, *_] = campaigns.outside().split("\n\n")[2].splitlines()
    assert head == f"| programs or tests | {' | '.join(f'driver {driver}' for driver in DRIVERS)} |"
    assert programs == f"| public programs | {' | '.join('10 of 10' for _ in DRIVERS)} |"


def test_numbers_of_results_stay_as_they_are() -> None:
    old, new = (f"of <!-- =runs -->{number}<!-- = --> runs" for number in (1, 22))
    assert campaigns.with_present_numbers(old, f"a page {new} here") == new


def test_a_soak_is_a_row_with_what_had_settled_at_its_half_and_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaigns, "RESULTS", tmp_path)
    first = {"seed": 7, "seconds": 60.0, "alone": False, "card": "NVIDIA H200", "driver": [13, 0]}
    quarters = [
        {
            "seconds": seconds,
            "rounds": seconds,
            "settled": True,
            "right": {"sums": 5, "drops": 1},
            "torch_mib": mib,
        }
        for seconds, mib in ((15, 10.0), (30, 20.0), (45, 21.0), (60, 22.0))
    ]
    lines = [first, *quarters, {"wrong": [], "grown": {"torch_mib": 2.0}, "too_much": ["torch_mib"]}]
    (tmp_path / "out").write_text("".join(json.dumps(line) + "\n" for line in lines))
    campaigns.add_soak(tmp_path / "out", "2026-01-02")
    campaigns.add_soak(tmp_path / "out", "2026-01-03")
    (row,) = [line for line in campaigns.soaks().splitlines() if line.startswith("| H200, 13.0")]
    assert row == "| H200, 13.0 (2026-01-03) | 60, 7 | 60 | 5 | 0 | 20 / 22 | - | - | - | - | - |"
