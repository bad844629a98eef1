"""The picture of a report."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cuda_gctx import Device, tune
from cuda_gctx.tune import Plan, TailLatency, Throughput, _report

from .pairs import (
    MS,
    PAIRS,
    chain,
    read_only,
    work,
)

pytestmark = pytest.mark.sim_only


def shown_in(svg: str) -> list[str]:
    """The texts of a picture, without its hover texts."""
    texts = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return [(text[0].tail if len(text) else text.text) or "" for text in texts]


@pytest.mark.parametrize("pair", PAIRS)
def test_the_picture_shows_the_plans_the_bound_and_its_legend(dev: Device, pair: str, tmp_path: Path) -> None:
    report = read_only(pair)
    svg = report.svg(tmp_path / "report.svg")
    assert (tmp_path / "report.svg").read_text() == svg == report._repr_html_()
    assert report.html(tmp_path / "report.html") == (tmp_path / "report.html").read_text()
    texts = shown_in(svg)
    for result in [r for i, r in enumerate(report.results) if i < 14 or r.plan.kind == "sequence"]:
        assert str(result.plan) in texts
    assert {"p10 to p90", "other plans"} < set(texts)
    assert any(text.startswith("bound: ") for text in texts)
    assert "prefers-color-scheme:dark" in svg
    assert svg.count('class="gctx-best"') == 2  # the bar of the best plan and the legend
    # Bars, spreads and parts are inside of the sheet.
    root = ElementTree.fromstring(svg)
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(box.attrib["x"]) >= 0
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= float(root.attrib["width"])


def test_parts_in_sequence_are_drawn_one_after_the_other(dev: Device) -> None:
    report = read_only("each fills half")
    for result in report.results:
        left, right = _report._pieces(report, result)
        assert left.start_ns == 0
        assert right.start_ns == (left.end_ns if result.plan.kind == "sequence" else 0)


def test_parts_of_a_mix_in_sequence_are_drawn_as_long_as_the_mix(dev: Device) -> None:
    report = tune.overlap(
        a=work(8, MS), b=work(8, MS), objective=Throughput(a=1, b=2), device=dev, sizes=[8], budget_s=2
    )
    [sequence] = [result for result in report.results if result.plan.kind == "sequence"]
    for piece in _report._pieces(report, sequence):
        assert piece.start_ns == 0
        assert piece.end_ns == pytest.approx(sequence.seconds.value * 1e9, rel=0.01)


def test_the_picture_has_the_whole_answer_and_explains_what_it_shows(dev: Device) -> None:
    measured = read_only("bulk work")
    assert isinstance(measured.objective, TailLatency)

    def hinted(plan: Plan) -> Plan:
        return dataclasses.replace(plan, library_sms=plan.layout is not None)

    report = dataclasses.replace(
        measured,
        sure=False,
        objective=dataclasses.replace(measured.objective, others=0.75),
        choice=hinted(measured.choice),
        results=tuple(dataclasses.replace(result, plan=hinted(result.plan)) for result in measured.results),
    )
    assert len(report.results) > _report.MOST_BARS
    texts = " ".join(shown_in(report.svg()))
    for words in (
        str(report).splitlines()[0],
        "hint: libraries use the SM counts of their partitions",
        "a plan is chosen only if the others keep 75% of their rate",
        "over the others",
        "slower plans",
    ):
        assert words in texts


def test_a_picture_shows_names_as_they_are_and_finds_room_for_long_ones(dev: Device) -> None:
    parts = {"_decode": chain, "cost $a_{<": work(8, MS), "x" * 300: work(8, MS)}
    texts = shown_in(tune.overlap(**parts, device=dev, budget_s=5).svg())
    assert {"_decode", "cost $a_{<"} < set(texts)
    assert any(text.startswith("xxx") and text.endswith("\N{HORIZONTAL ELLIPSIS}") for text in texts)
    assert any("/" in text for text in texts)
