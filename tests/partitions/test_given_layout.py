"""CUDA_GCTX_LAYOUT: the layout that dev.partition() opens without arguments, and what does not fit it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from cuda_gctx import Context, Device, Layout, PartitionPool, SplitError
from cuda_gctx.partitions import layout_of_text

VARIABLE = "CUDA_GCTX_LAYOUT"
LAYOUT = Layout(decode=16, prefill=None)


def given(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(VARIABLE, value)


@pytest.mark.parametrize("text", ["decode=16,prefill=rest", " decode=16  prefill=rest\n", LAYOUT.to_json()])
def test_a_layout_is_words_or_json(text: str) -> None:
    assert layout_of_text(text) == LAYOUT


@pytest.mark.parametrize("content", [LAYOUT.to_json(), "decode=16\nprefill=rest\n"])
def test_a_layout_is_the_path_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    (tmp_path / "layout.json").write_text(content)
    assert layout_of_text(str(tmp_path / "layout.json")) == LAYOUT
    monkeypatch.chdir(tmp_path)
    assert layout_of_text("layout.json") == LAYOUT


def test_a_layout_by_position_has_shares_too() -> None:
    assert layout_of_text("0.25,64") == Layout(0.25, 64)


def test_the_rest_beside_named_partitions_is_named_rest() -> None:
    assert layout_of_text("control=16,rest") == Layout(control=16, rest=None)


def test_the_given_layout_is_opened(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, "decode=16,prefill=rest")
    with dev.partition() as parts:
        assert (parts.layout, parts.decode.sm_count) == (LAYOUT, 16)
    with dev.partition(decode=16, prefill=None) as parts:  # the program requests the same
        assert parts.layout == LAYOUT
    with dev.partition(among="free") as parts:
        assert parts.layout == LAYOUT


@pytest.mark.parametrize("value", [None, "", "  "])
def test_without_arguments_and_without_the_variable_the_error_names_it(
    dev: Device, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        given(monkeypatch, value)
    with pytest.raises(ValueError, match=f"at least one partition: request one, or set {VARIABLE}"):
        dev.partition()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("decode=many", "invalid request 'many': write a number of SMs"),
        ("decode=16,32", "name all partitions or none"),
        ("a=8,a=8", "a different name"),
        ("a=rest,b=rest", "only one partition can"),
        ("close=8", "it is reserved"),
        ("decode=-8", "-8"),
        ("decode=1.0", "not a fraction below 1"),
        (",", "at least one partition"),
        ('{"partitions": 1}', "this JSON is not a layout"),
        ("{", "Expecting property name"),
        ("/no/such/layout.json", "the file cannot be read"),
    ],
)
def test_what_is_not_a_layout_is_refused_with_the_variable_and_its_value(
    dev: Device, monkeypatch: pytest.MonkeyPatch, value: str, reason: str
) -> None:
    given(monkeypatch, value)
    for requests in ((), (16,)):
        with pytest.raises(ValueError, match="is not a layout: ") as refused:
            dev.partition(*requests)
        assert f"{VARIABLE}={value!r}" in str(refused.value)
        assert reason in str(refused.value)


@pytest.mark.sim_only
@pytest.mark.parametrize("among", ["all", "free"])
def test_a_layout_that_does_not_fit_is_refused_with_one_that_fits_and_nothing_is_open(
    dev: Device, monkeypatch: pytest.MonkeyPatch, among: str
) -> None:
    given(monkeypatch, "decode=16,prefill=200")
    gc.collect()
    before = [thing for thing in gc.get_objects() if type(thing) is Context]
    with pytest.raises(SplitError) as refused:
        dev.partition(among=among)  # type: ignore[call-overload]
    assert str(refused.value).startswith(f"{VARIABLE}='decode=16,prefill=200': ")
    if among == "all":
        assert "a layout that fits is" in str(refused.value)
    assert [thing for thing in gc.get_objects() if type(thing) is Context] == before


def test_a_share_that_is_too_small_names_the_variable(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, "0.001")
    with pytest.raises(ValueError, match=rf"^{VARIABLE}='0.001': .*request a share of 0\.\d+ or more"):
        dev.partition()


def test_a_program_that_requests_another_layout_is_refused(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, "decode=16,prefill=rest")
    with pytest.raises(ValueError, match=r"Layout\(decode=16, prefill=None\), and the program requests .*decode=32"):
        dev.partition(decode=32)


def test_a_name_that_the_given_layout_lacks_is_refused_with_the_variable(
    dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, "decode=16")
    with dev.partition() as parts:
        with pytest.raises(AttributeError, match=f"the names are decode, background, from {VARIABLE}='decode=16'"):
            _ = parts.prefill
        with pytest.raises(KeyError, match=f"from {VARIABLE}='decode=16'"):
            _ = parts["prefill"]
        monkeypatch.setenv(VARIABLE, "decode=32")
        with pytest.raises(AttributeError, match=r"the names are decode, background$"):
            _ = parts.prefill


def test_pools_take_their_layouts_from_the_program(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, "decode=16,prefill=rest")
    with PartitionPool(dev) as pool:
        assert pool.prepare(decode=32).decode.sm_count == 32
