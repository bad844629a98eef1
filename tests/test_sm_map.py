"""The SM map: who has which SM, grouped by the clusters of the chip where these are known, as text and as pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cuda_gctx import Device, _chip
from cuda_gctx._chip import chip_clusters, joined
from cuda_gctx._sm_map import SMMap

from .common import green, split

Machines = Callable[..., Any]

RECORDING = Path(__file__).parent / "hardware" / "h200-driver-13.0.json"
TIMEOUT_NS = 10_000_000_000
SVG = "{http://www.w3.org/2000/svg}"


def hover_texts(svg: str) -> list[str]:
    return [title.text or "" for title in ElementTree.fromstring(svg).iter(f"{SVG}title")]


# ---- clusters of the chip


def test_clusters_of_the_chip_are_those_that_were_recorded(sim: Machines) -> None:
    sim("h200")
    recorded = json.loads(RECORDING.read_text())["layout"]["gpcs"]
    assert [list(cluster) for cluster in chip_clusters(Device(), TIMEOUT_NS)] == recorded


def test_every_sm_is_in_one_cluster_of_the_chip_or_none_is_known(dev: Device) -> None:
    clusters = chip_clusters(dev, TIMEOUT_NS)
    ids = [sm for cluster in clusters for sm in cluster]
    if dev.compute_capability >= (9, 0):
        assert sorted(ids) == list(range(dev.sm_count))
    else:
        assert ids == []


def test_clusters_are_looked_for_once(sim: Machines) -> None:
    machine = sim("h200")
    with Device().partition(8) as parts:
        first = parts.verify()
        launches = machine.calls("cuLaunchKernelEx")
        assert launches > 0
        assert parts.verify().clusters == first.clusters
        assert machine.calls("cuLaunchKernelEx") == launches


def test_another_driver_is_asked_anew(sim: Machines) -> None:
    from cuda_gctx.sim import session

    before = set(_chip._known)
    with session("b200"):
        assert len(chip_clusters(Device(), TIMEOUT_NS)) == 8
    assert set(_chip._known) == before  # what is known of a driver goes with it
    sim("h200")
    assert len(chip_clusters(Device(), TIMEOUT_NS)) == 12


def test_where_clusters_cannot_be_launched_the_map_is_by_id_and_says_so(sim: Machines) -> None:
    machine = sim("h200")
    machine.fail("cuLaunchKernelEx", code="CUDA_ERROR_NOT_SUPPORTED")
    with Device().partition(8) as parts:
        report = parts.verify()
        assert report.clusters == ()
        assert str(report.sm_map()).startswith("SM   0  AA BB")
        assert "is not known here" in report.sm_map().svg()
        assert machine.calls("cuLaunchKernelEx") == 1
        assert parts.verify().problems == ()
        assert machine.calls("cuLaunchKernelEx") == 1  # a refusal is not asked for again


def test_the_proof_of_one_context_runs_on_no_other_sms(sim: Machines) -> None:
    machine = sim("h200")
    [group], _ = split(Device().resources.sm, [8])
    with green(Device(), group) as context:
        assert context.verify().clusters == ()
        assert machine.calls("cuLaunchKernelEx") == 0


def test_sets_that_share_a_member_are_joined() -> None:
    assert joined([{5, 6}, {1, 2}, {2, 3}, {8}, {3, 1}]) == ((1, 2, 3), (5, 6), (8,))
    assert joined([{1, 2}, {3, 4}, {2, 3}]) == ((1, 2, 3, 4),)


# ---- text


def test_a_row_of_text_is_a_cluster_of_the_chip(sim: Machines) -> None:
    sim("h200")
    with Device().partition(decode=16, prefill=None) as parts:
        *rows, legend = str(parts.verify().sm_map()).splitlines()
    assert rows[0] == "cluster 0   AA AA AA AA                 SM 0-1, 16-17, 32-33, 48-49"
    assert rows[-1] == "lone pairs  CC CC CC CC                 SM 124-131"
    assert legend == "A = decode, B = prefill, C = rest"


def test_every_sm_stands_in_the_text_under_the_letter_of_its_owner(dev: Device) -> None:
    with dev.partition(decode=8) as parts:
        report = parts.verify()
    cells = [cell for row in report.sm_map().rows() for cell in row.cells]
    assert sorted(cell.sm for cell in cells) == list(range(dev.sm_count))
    for proof in report.contexts:
        assert sorted(cell.sm for cell in cells if cell.owners == (proof.name,)) == list(proof.sm_ids)
    *rows, _ = str(report.sm_map()).splitlines()
    marks = "".join(mark for row in rows for mark in re.findall(r"(?<= )[AB]{1,2}(?= |$)", row))
    assert (marks.count("A"), marks.count("B")) == tuple(proof.expected for proof in report.contexts)


def test_shared_and_free_sms_are_marked() -> None:
    shown = SMMap("a GPU", "13.0", (("x", (0, 1, 2)), ("y", (2, 3))), outside=(5,))
    assert str(shown) == "SM   0  AA !B ..\nA = x, B = y, ! = shared, . = nobody"
    clustered = SMMap("a GPU", "13.0", (("x", (0, 1, 2)), ("y", (2, 3))), clusters=((0, 1, 2, 3), (4, 5)), outside=(6,))
    assert str(clustered).splitlines() == [
        "cluster 0   AA !B  SM 0-3",
        "lone pairs  ..     SM 4-5",
        "not known   .      SM 6",
        "A = x, B = y, ! = shared, . = nobody",
    ]


def test_a_map_of_nothing_can_be_shown() -> None:
    empty = SMMap("a GPU", "13.0", ())
    assert str(empty) == ""
    assert hover_texts(empty.svg()) == []


# ---- pictures


def test_the_picture_tells_of_every_sm_whose_it_is_and_where(sim: Machines) -> None:
    sim("h200")
    with Device().partition(decode=16, prefill=None) as parts:
        shown = parts.verify().sm_map()
    told = hover_texts(shown.svg())
    assert len(told) == 132
    assert "SM 0: decode (cluster 0)" in told
    assert "SM 131: rest (lone pairs)" in told
    words = "".join(ElementTree.fromstring(shown.svg()).itertext())
    assert "NVIDIA H200 (simulated), driver 13.0" in words
    assert "prefill, 104 SMs" in words


def test_shared_sms_show_all_their_owners() -> None:
    svg = SMMap("a GPU", "13.0", (("x", (0, 1)), ("y", (1,)))).svg()
    assert "SM 1: x and y, shared (SM 0-1)" in hover_texts(svg)
    assert "shared, 1 SM" in "".join(ElementTree.fromstring(svg).itertext())


def test_names_are_shown_as_they_are_and_not_as_markup() -> None:
    name = "<b>&\"'"
    shown = SMMap(name, "13.0", ((name, (0, 1)),))
    assert f"SM 0: {name} (SM 0-1)" in hover_texts(shown.svg())
    assert "<b>" not in shown.html()


def test_a_page_loads_nothing_from_anywhere() -> None:
    page = SMMap("a GPU", "13.0", (("x", (0, 1)),)).html()
    assert page.startswith("<!doctype html>")
    assert re.findall(r"https?://[^\"]*", page) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<script|<link|src=|url\(|@import", page)


def test_a_notebook_shows_the_picture() -> None:
    shown = SMMap("a GPU", "13.0", (("x", (0, 1)),))
    assert shown._repr_svg_() == shown._repr_html_() == shown.svg()


def test_many_owners_have_colours_of_their_own() -> None:
    shown = SMMap("a GPU", "13.0", tuple((f"part {i}", (i,)) for i in range(20)))
    assert len(set(shown.colours.values())) == 20
    assert set(shown.colours) == {f"part {i}" for i in range(20)}


@pytest.mark.parametrize("card", ["a100", "l40s", "b200", "thor"])
def test_other_cards_have_a_map(sim: Machines, card: str) -> None:
    sim(card, driver="13.0")
    dev = Device()
    with dev.partition(0.5) as parts:
        assert len(hover_texts(parts.verify().sm_map().svg())) == dev.sm_count
