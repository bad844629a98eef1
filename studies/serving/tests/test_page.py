"""The pages show what the results say, and the results are of trials."""

from __future__ import annotations

import json

import pytest
from serving import page
from serving.loads import LOADS

RESULT = json.loads(page.RESULTS.read_text())


def test_the_pages_show_the_results() -> None:
    assert page.write(check=True) == 0


def test_a_page_that_differs_or_has_no_table_is_found() -> None:
    text = page.PAGES[0].read_text()
    changed = text.replace("0.813", "0.913", 1)
    assert changed != text
    assert page.with_table(changed, page.table(RESULT)) == text
    with pytest.raises(SystemExit, match="one table"):
        page.with_table(text.replace(page.BEGIN, ""), "")


def test_each_rate_that_was_kept_is_that_of_a_trial() -> None:
    """Under the same limit or another one, as a trial answers for both. Trials of long answers were not recorded."""
    for row in RESULT["goodput"]:
        if row["load"] == "answers" or not row["kept"]:
            continue
        same = [
            one
            for one in RESULT["trials"]
            if all(one[key] == row[key] for key in ("model", "load", "contender"))
            and one["kept"]
            and one["gaps_ms"]["p99"] <= row["gap_ms"]
        ]
        assert any(one["seed"] == 1 and one["rate"] == row["kept"] for one in same), row
        if "kept_by_all" in row:
            assert any(one["rate"] == row["kept_by_all"] for one in same), row


def test_no_trial_that_was_kept_misses_its_limits_or_has_a_wrong_answer() -> None:
    for one in RESULT["trials"]:
        assert not one["kept"] or one["gaps_ms"]["p99"] <= one["gap_ms"], one
        assert not one["wrong_answers"], one


def test_every_load_has_a_best_chunked_prefill() -> None:
    asked = {(model, load.name, gap) for load in LOADS.values() for model, gaps in load.gaps_ms.items() for gap in gaps}
    assert {page.load_of(row) for row in RESULT["goodput"] if row["contender"] == "chunked" and row["kept"]} == asked


def test_shares_say_how_far_a_search_has_come() -> None:
    best = {"kept": 2.0, "kept_by_all": 1.0}
    assert page.share_of(None, best) == "not run"
    assert page.share_of({"kept": 1.0, "kept_by_all": 0.8}, best) == "0.50 (0.80)"
    assert page.share_of({"kept": 1.0, "below": 1.5}, best) == "0.50 to 0.75"
    assert page.share_of({"kept": 0.0, "below": 1.5}, best) == "below 0.75"


def test_what_the_page_says_in_words_is_in_the_results() -> None:
    ms = {(one["model"], one["sms"], one["what"]): one["ms"] for one in RESULT["costs"]}
    whole, most, half = (ms["8B", sms, "chunk of 2048 at 0"] for sms in (132, 116, 68))
    hint, without = (ms["8B", 116, f"prefill, {how}"] for how in ("with a hint", "without a hint"))
    rows = [row for row in RESULT["goodput"] if row["load"] == "answers"]
    kept = {(row["contender"], row["settings"]["margin"]): row["kept"] for row in rows}
    unbounded = [one["rate"] for one in RESULT["trials"] if one["gap_ms"] == 100_000 and one["kept"]]
    quoted = [
        f"{len(RESULT['trials'])} trials",
        f"takes {whole:.1f} ms on 132 SMs, {most:.1f} on 116 ({most / whole:.2f} times as long",
        f"and {half:.1f} on 68",
        f"({hint:.1f} ms with it and {without:.1f} ms without)",
        f"it keeps {kept['chunked', 0.9]:g} requests/s, and partitions that follow the load keep "
        f"{kept['following-disjoint', 0.9]:g}",
        f"prompts alone keep {max(unbounded):.3f} requests/s",
    ]
    text = " ".join(page.PAGES[1].read_text().split())
    assert [words for words in quoted if words not in text] == []
