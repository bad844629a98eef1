"""Layouts are values: equal, hashable, printable, and the same after JSON and pickle."""

from __future__ import annotations

import pickle

import pytest

from cuda_gctx import Layout, PartitionSpec, SMResourceOptions, WorkqueueResourceOptions

LAYOUTS = [
    Layout(decode=16, prefill=None),
    Layout(8, 8, 16),
    Layout(0.25, None),
    Layout(1),
    Layout(1.0),
    Layout(a=SMResourceOptions([10], backfill=True), b=SMResourceOptions(32, coscheduled_sm_count=16)),
    Layout(a=PartitionSpec(16, WorkqueueResourceOptions("green_ctx_balanced", 4)), b=PartitionSpec(None)),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_layout_survives_json_and_pickle(layout: Layout) -> None:
    for copy in (Layout.from_json(layout.to_json()), pickle.loads(pickle.dumps(layout))):
        assert copy == layout
        assert hash(copy) == hash(layout)
        assert repr(copy) == repr(layout)


def test_layouts_are_all_different() -> None:
    assert len(set(LAYOUTS)) == len(LAYOUTS)
    assert Layout(1) != Layout(1.0)  # one SM, all of the device
    assert Layout(a=8, b=16) != Layout(b=16, a=8)
    assert Layout(a=8) != Layout(8)
    assert Layout(8) != 8


def test_layout_of_a_mapping_or_sequence_is_the_same_value() -> None:
    assert Layout.of({"decode": 16, "prefill": None}) == Layout(decode=16, prefill=None)
    assert Layout.of([8, 8]) == Layout.of((8, 8)) == Layout(8, 8)
    assert Layout.of(LAYOUTS[0]) is LAYOUTS[0]
    for wrong in ("ab", 8, None):
        with pytest.raises(TypeError, match="a mapping or a sequence"):
            Layout.of(wrong)  # type: ignore[arg-type]


def test_layout_prints_as_it_is_written() -> None:
    assert repr(LAYOUTS[0]) == "Layout(decode=16, prefill=None)"
    assert repr(LAYOUTS[1]) == "Layout(8, 8, 16)"


def test_layout_cannot_be_changed() -> None:
    for name in ("specs", "names", "other"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(LAYOUTS[0], name, ())
    with pytest.raises(AttributeError, match="cannot be changed"):
        del LAYOUTS[0].names


@pytest.mark.parametrize(
    "text", ["{}", "[]", "{", '{"partitions": [{}]}', '{"partitions": [{"sms": 8, "name": "a"}, {"sms": 8}]}']
)
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expecting"):
        Layout.from_json(text)
