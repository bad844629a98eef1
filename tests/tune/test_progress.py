"""The bar that shows how far the tuner is."""

from __future__ import annotations

import pytest

from cuda_gctx import Device, tune

from .pairs import (
    chain,
    tuned,
)

pytestmark = pytest.mark.sim_only


def test_the_bar_is_shown_where_it_is_wanted_and_gone_at_the_end(
    dev: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned("each fills half", sizes=[64])
    tuned("each fills half", sizes=[64], progress=False)
    assert capsys.readouterr().err == ""
    tuned("each fills half", sizes=[64], progress=True)
    shown = capsys.readouterr().err
    assert "[" in shown
    assert shown.endswith("\r")
    assert shown.split("\r")[-2].strip() == ""
    assert "\n" not in shown


def test_the_bar_is_no_wider_than_the_terminal(
    dev: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    tune.overlap(
        an_attention_with_a_long_name=chain, another_one_with_a_long_name=chain, device=dev, progress=True, budget_s=1
    )
    lines = capsys.readouterr().err.split("\r")
    assert max(map(len, lines)) == 39
