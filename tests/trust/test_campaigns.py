"""The page Reliability is what its program writes from campaigns.json."""

from __future__ import annotations

from . import campaigns


def test_the_page_is_up_to_date() -> None:
    assert campaigns.PAGE.read_text() == campaigns.page()


def test_its_first_sentence_says_what_never_ran_on_hardware() -> None:
    _, _, text = campaigns.page().partition("# Reliability\n\n")
    assert text.startswith("**Never run on hardware:** ")


def test_numbers_of_results_stay_as_they_are() -> None:
    old, new = (f"of <!-- =runs -->{number}<!-- = --> runs" for number in (1, 22))
    assert campaigns.with_present_numbers(old, f"a page {new} here") == new
