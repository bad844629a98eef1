"""The page Reliability is what its program writes from campaigns.json."""

from __future__ import annotations

import json

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
