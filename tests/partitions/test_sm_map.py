"""The SM map: which partition owns which SM, grouped by GPC where the GPCs are known, as text and as pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cuda_gctx import Device
from cuda_gctx.draw.svg import text_width
from cuda_gctx.partitions import chip
from cuda_gctx.partitions.chip import chip_clusters, joined
from cuda_gctx.partitions.sm_map import SMMap

from ..common import green, split
from ..conftest import REPOSITORY

Machines = Callable[..., Any]

RECORDING = REPOSITORY / "software_driver" / "tests" / "hardware" / "h200-driver-13.0.json"
TIMEOUT_NS = 10_000_000_000
SVG = "{http://www.w3.org/2000/svg}"


def hover_texts(svg: str) -> list[str]:
    return [title.text or "" for title in ElementTree.fromstring(svg).iter(f"{SVG}title")]


def words_of(svg: str) -> list[str]:
    """What the picture shows, without its hover texts."""
    return [(text[0].tail if len(text) else text.text) or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def of_parts(count: int) -> SMMap:
    return SMMap("a GPU", "13.0", tuple((f"part {i}", (2 * i, 2 * i + 1)) for i in range(count)))


def distance(one: str, other: str) -> float:
    """How far apart two colours are to the eye, roughly: 765 for black and white."""
    (r, g, b), (red, green, blue) = (bytes.fromhex(colour[1:]) for colour in (one, other))
    mean = (r + red) / 512
    return float(((2 + mean) * (r - red) ** 2 + 4 * (g - green) ** 2 + (3 - mean) * (b - blue) ** 2) ** 0.5)


# ---- GPCs


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
    from cuda_software_driver import session

    before = set(chip._known)
    with session("b200"):
        assert len(chip_clusters(Device(), TIMEOUT_NS)) == 8
    assert set(chip._known) == before  # what is known of a driver goes with it
    sim("h200")
    assert len(chip_clusters(Device(), TIMEOUT_NS)) == 12


def test_where_clusters_cannot_be_launched_the_map_is_by_id_and_says_so(sim: Machines) -> None:
    machine = sim("h200")
    machine.fail("cuLaunchKernelEx", code="CUDA_ERROR_NOT_SUPPORTED")
    with Device().partition(8) as parts:
        report = parts.verify()
        assert report.clusters == ()
        assert str(report.sm_map()).startswith("SM   0  AA BB")
        assert "are not known here" in report.sm_map().svg()
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


def test_a_row_of_text_is_a_gpc(sim: Machines) -> None:
    sim("h200")
    with Device().partition(decode=16, prefill=104) as parts:
        *rows, legend = str(parts.verify().sm_map()).splitlines()
    assert rows[0] == "GPC 0        AA AA AA AA                 SM 0-1, 16-17, 32-33, 48-49"
    assert rows[1:3] == [
        "GPC 1        AA AA AA AA BB BB BB BB     SM 2-3, 18-19, 34-35, 50-51, 64-65,",
        "                                            78-79, 92-93, 106-107",
    ]
    assert rows[-1] == "single TPCs  CC CC CC CC                 SM 124-131"
    assert legend == "A = decode, B = prefill, C = background"


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
    clustered = SMMap("a GPU", "13.0", (("x", (0, 1, 2)), ("y", (2, 3))), gpcs=((0, 1, 2, 3), (4, 5)), outside=(6,))
    assert str(clustered).splitlines() == [
        "GPC 0        AA !B  SM 0-3",
        "single TPCs  ..     SM 4-5",
        "unknown      .      SM 6",
        "A = x, B = y, ! = shared, . = nobody",
    ]


def test_the_text_fits_80_columns(sim: Machines) -> None:
    for card in ("h200", "b200"):
        sim(card)
        dev = Device()
        names = {f"a_partition_with_a_long_name_{number}": 8 for number in range(10)}
        with dev.partition(**names) as parts:
            lines = str(parts.verify().sm_map()).splitlines()
        assert max(map(len, lines)) <= 80
        ids = [int(word) for word in re.findall(r"\d+", " ".join(line[40:] for line in lines if "=" not in line))]
        assert {0, dev.sm_count - 1} <= set(ids)
        assert all(any(f" = {name}" in line for line in lines) for name in names)


def test_pictures_are_written_where_a_path_is_given(tmp_path: Path) -> None:
    shown = SMMap("a GPU", "13.0", (("x", (0, 1)),))
    assert shown.svg(tmp_path / "map.svg") == shown.svg() == (tmp_path / "map.svg").read_text()
    assert shown.html(tmp_path / "map.html") == shown.html() == (tmp_path / "map.html").read_text()


def test_a_page_scales_to_the_window() -> None:
    assert "svg{max-width:100%;height:auto}" in SMMap("a GPU", "13.0", (("x", (0, 1)),)).html()


def test_a_map_of_nothing_can_be_shown() -> None:
    empty = SMMap("a GPU", "13.0", ())
    assert str(empty) == ""
    assert hover_texts(empty.svg()) == []


# ---- pictures


def test_the_picture_names_the_owner_and_the_place_of_every_sm(sim: Machines) -> None:
    sim("h200")
    with Device().partition(decode=16, prefill=104) as parts:
        shown = parts.verify().sm_map()
    texts = hover_texts(shown.svg())
    assert len(texts) == 132
    assert "SM 0: decode (GPC 0)" in texts
    assert "SM 131: background (single TPCs)" in texts
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


def test_seven_owners_have_colours_of_their_own_and_more_have_letters() -> None:
    assert len(set(of_parts(7).colours.values())) == 7
    shown = of_parts(100)
    assert set(shown.colours) == {f"part {i}" for i in range(100)}
    colours = list(shown.colours.values())
    assert all(distance(one, other) > 60 for one, other in pairwise(colours))


def test_every_cell_has_an_outline_and_the_letter_of_the_text() -> None:
    shown = of_parts(16)
    boxes = list(ElementTree.fromstring(shown.svg()).iter(f"{SVG}rect"))
    filled = [box for box in boxes if "fill" in box.attrib]
    assert len(filled) == 32 + 16
    assert {box.attrib["class"] for box in filled} == {"gctx-cell"}
    assert shown.svg().count(".gctx-cell{stroke:") == 2  # light and dark
    words = words_of(shown.svg())
    for letter in shown.letters.values():
        assert words.count(letter) == 3  # two cells and the legend


def test_a_shared_cell_has_the_mark_of_the_text() -> None:
    words = words_of(SMMap("a GPU", "13.0", (("x", (0, 1)), ("y", (1,)))).svg())
    assert [words.count(mark) for mark in "AB!"] == [2, 1, 2]


@pytest.mark.parametrize(("letter", "ems"), [("n", 0.55), ("N", 0.75), ("\uff37", 1), ("\u533a", 1)])
def test_a_long_name_is_shortened_to_the_sheet_and_shown_in_full(letter: str, ems: float) -> None:
    name = letter * 130
    svg = SMMap("a GPU", "13.0", ((name, tuple(range(16))), ("y", (16,)))).svg()
    [shown] = [words for words in words_of(svg) if words.endswith("\N{HORIZONTAL ELLIPSIS}, 16 SMs")]
    width = float(ElementTree.fromstring(svg).attrib["width"])
    assert 600 < ems * 12 * shown.count(letter) < width - 100
    assert width < 900
    assert f"{name}, 16 SMs" in hover_texts(svg)


def test_the_sheet_is_as_wide_as_its_legend() -> None:
    name = "a name that is wider than the sheet would be " * 2
    svg = SMMap("a GPU", "13.0", ((name, (0, 1)),)).svg()
    assert f"{name}, 2 SMs" in words_of(svg)
    assert float(ElementTree.fromstring(svg).attrib["width"]) >= 40 + text_width(f"{name}, 2 SMs", 12)


@pytest.mark.parametrize("name", ["bell\x07", "\x1b[31mred", "null\0", "half \ud83d", "\ufffe", "<&>\x08"])
def test_a_name_that_xml_cannot_hold_leaves_the_picture_well_formed(name: str) -> None:
    shown = SMMap(name, "13.0", ((name, (0, 1)),))
    readable = re.sub("[\x00\x07\x08\x1b\ud83d\ufffe]", "\ufffd", name)
    assert f"SM 0: {readable} (SM 0-1)" in hover_texts(shown.svg())
    assert f"{readable}, 2 SMs" in words_of(shown.svg())
    shown.html().encode()
    assert "\ufffd" in shown.html().partition("</title>")[0]


@pytest.mark.parametrize("card", ["a100", "l40s", "b200", "thor"])
def test_other_cards_have_a_map(sim: Machines, card: str) -> None:
    sim(card, driver="13.0")
    dev = Device()
    with dev.partition(0.5) as parts:
        assert len(hover_texts(parts.verify().sm_map().svg())) == dev.sm_count
