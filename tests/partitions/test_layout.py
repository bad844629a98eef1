"""Layouts are values: equal, hashable, printable, and the same after JSON and pickle."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from enum import Enum
from fractions import Fraction
from typing import Any

import pytest

from cuda_gctx import Device, Layout, PartitionPool, PartitionSpec, SMResourceOptions, WorkqueueResourceOptions
from cuda_gctx.partitions import Partitions, partition
from cuda_gctx.partitions.layout import RESERVED_NAMES

LAYOUTS = [
    Layout(decode=16, prefill=None),
    Layout(8, 8, 16),
    Layout(0.25, None),
    Layout(1),
    Layout(0.9),
    Layout(a=SMResourceOptions([10], backfill=True), b=SMResourceOptions(32, coscheduled_sm_count=16)),
    Layout(a=PartitionSpec(16, WorkqueueResourceOptions("green_ctx_balanced", 4)), b=PartitionSpec(None)),
    Layout(a=16, b=PartitionSpec(None, aligned=True)),
    Layout(SMResourceOptions(None, backfill=True)),
    Layout(SMResourceOptions(8, locality_domain=0)),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_layout_survives_json_and_pickle(layout: Layout) -> None:
    for again in (Layout.from_json(layout.to_json()), pickle.loads(pickle.dumps(layout)), copy.deepcopy(layout)):
        assert again == layout
        assert hash(again) == hash(layout)
        assert repr(again) == repr(layout)


def test_layouts_are_all_different() -> None:
    assert len(set(LAYOUTS)) == len(LAYOUTS)
    assert Layout(a=8, b=16) != Layout(b=16, a=8)
    assert Layout(a=8) != Layout(8)
    assert Layout(8) != 8


def test_layout_of_a_mapping_or_sequence_is_the_same_value() -> None:
    assert Layout.of({"decode": 16, "prefill": None}) == Layout(decode=16, prefill=None)
    assert Layout.of([8, 8]) == Layout.of((8, 8)) == Layout(8, 8)
    assert Layout.of(LAYOUTS[0]) is LAYOUTS[0]
    assert Layout.of(8) == Layout.of([8]) == Layout(8)
    assert Layout.of(8, 16) == Layout(8, 16)
    assert Layout.of(decode=16) == Layout(decode=16)
    for wrong in ("ab", b"ab", {8}, object()):
        with pytest.raises(TypeError, match="sms must be an int, a share"):
            Layout.of(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="by position or by name"):
        Layout.of({"decode": 16}, prefill=None)


def test_layout_prints_as_it_is_written() -> None:
    assert repr(LAYOUTS[0]) == "Layout(decode=16, prefill=None)"
    assert repr(LAYOUTS[1]) == "Layout(8, 8, 16)"


def test_layout_cannot_be_changed() -> None:
    for name in ("specs", "names", "other"):
        with pytest.raises(AttributeError, match="is immutable"):
            setattr(LAYOUTS[0], name, ())
    with pytest.raises(AttributeError, match="is immutable"):
        del LAYOUTS[0].names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Expecting"),
        ("[]", 'an object with a "partitions" list'),
        ('{"a": 1}', 'an object with a "partitions" list'),
        ('{"partitions": [{"sms": null}]}', r"its schema is missing\. In schema 1, .* the aligned remainder only"),
        ('{"schema": 3, "partitions": [{"sms": 8}]}', "not a layout of schema 2: its schema is 3"),
        ('{"schema": 2.0, "partitions": [{"sms": 8}]}', r"not a layout of schema 2: its schema is 2\.0"),
        ('{"schema": 2, "partitions": [{"sms": 8, "sms": 16}]}', "has the field 'sms' twice in one object"),
        ('{"schema": 2, "schema": 2, "partitions": [{"sms": 8}]}', "has the field 'schema' twice in one object"),
        ('{"schema": 2, "partitions": [{"sms": 8}], "pool": 1}', "fields are schema and partitions, and not pool"),
        ('{"schema": 2, "partitions": [{}]}', r"partitions\[0\]: a partition must have exactly one of .* no field"),
        ('{"schema": 2, "partitions": [{"sms": 8, "share": 0.5}]}', r"partitions\[0\]: .* it has share, sms"),
        ('{"schema": 2, "partitions": [{"sms": 8, "color": 1}]}', r"partitions\[0\]: .* it has color, sms"),
        ('{"schema": 2, "partitions": [{"sms": 8}, 8]}', r"partitions\[1\]: a partition must be an object, not int"),
        ('{"schema": 2, "partitions": [{"sms": null}]}', "sms must be an integer, not None"),
        ('{"schema": 2, "partitions": [{"remaining": "some"}]}', "remaining must be 'all' or 'aligned', not 'some'"),
        ('{"schema": 2, "partitions": [{"sms": 8, "name": "a"}, {"sms": 8}]}', "all partitions need different names"),
        ('{"schema": 2, "partitions": [{"sms": 8, "name": 1}]}', "must be a str, not int"),
        ('{"schema": 2, "partitions": []}', "at least one partition"),
        (f'{{"schema": 2, "partitions": [{{"sms": {"9" * 400}}}]}}', "sms must be an int from 0 to 1000000, not 9"),
        pytest.param("[" * 100_000, "nested too deeply", id="100,000 brackets"),
    ],
)
def test_other_json_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Layout.from_json(text)


@pytest.mark.parametrize(
    "equal",
    [
        [8, SMResourceOptions(8), SMResourceOptions([8]), PartitionSpec(8), PartitionSpec(SMResourceOptions((8,)))],
        [0.3, 0.1 + 0.2, PartitionSpec(0.3), Fraction(3, 10)],
        [None, PartitionSpec(), PartitionSpec(None)],
        [
            SMResourceOptions(None),
            SMResourceOptions([None]),
            PartitionSpec(None, aligned=True),
            PartitionSpec(SMResourceOptions(None), aligned=True),
        ],
        [SMResourceOptions([10], backfill=[True]), SMResourceOptions(10, backfill=True)],
        [SMResourceOptions([32], coscheduled_sm_count=[16]), SMResourceOptions(32, coscheduled_sm_count=16)],
    ],
    ids=lambda equal: repr(equal[0]),
)
def test_requests_that_mean_the_same_make_one_layout(equal: list[Any]) -> None:
    assert len({Layout(a=request) for request in equal}) == 1
    assert len({Layout(request).to_json() for request in equal}) == 1
    assert len({PartitionSpec(r) if not isinstance(r, PartitionSpec) else r for r in equal}) == 1


def test_all_remaining_sms_and_the_aligned_ones_are_different_requests() -> None:
    assert Layout(None) != Layout(PartitionSpec(None, aligned=True))
    assert Layout(None) != Layout(SMResourceOptions(None, backfill=True))


def test_aligned_belongs_to_the_remaining_sms() -> None:
    for request in (16, 0.5, SMResourceOptions(None, backfill=True)):
        with pytest.raises(ValueError, match="aligned=True is for all remaining SMs"):
            PartitionSpec(request, aligned=True)
    with pytest.raises(TypeError, match="aligned must be a bool"):
        PartitionSpec(None, aligned=1)  # type: ignore[arg-type]


def test_a_share_of_one_is_refused_with_what_to_use() -> None:
    for whole in (1.0, 0.99999999999):
        with pytest.raises(ValueError, match=r"1\.0 is not a share: request all remaining SMs with None"):
            Layout(a=whole)


def test_the_reserved_names_are_what_the_objects_and_functions_use() -> None:
    attributes = {name for name in dir(Partitions) if not name.startswith("_")}
    keywords = {
        parameter.name
        for function in (partition, PartitionPool.prepare, PartitionPool.switch)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert attributes | keywords == RESERVED_NAMES


@pytest.mark.parametrize("name", sorted({*RESERVED_NAMES, "_x", "a b", "1", "class", "None", "lambda"}))
def test_every_entry_point_refuses_the_same_names(dev: Device, name: str) -> None:
    text = json.dumps({"schema": 2, "partitions": [{"name": name, "sms": 8}]})
    with PartitionPool(dev) as pool:
        for entry in (
            lambda: Layout(**{name: 8}),
            lambda: Layout.of({name: 8}),
            lambda: Layout.from_json(text),
            lambda: dev.partition({name: 8}),
            lambda: pool.prepare({name: 8}),
        ):
            with pytest.raises(ValueError, match=f"'{name}' cannot be the name of a partition"):
                entry()


def test_names_of_a_subclass_of_str_are_the_plain_names(dev: Device) -> None:
    class Part(str, Enum):
        ENCODE = "encode"
        REST = "rest"

    layout = Layout.of({Part.ENCODE: 16, Part.REST: None})
    assert [type(name) for name in layout.names] == [str, str]
    with dev.partition(layout) as parts:
        assert parts[Part.ENCODE] is parts.encode
    # The layout that the whole process shares is that of the plain names.
    assert Layout(encode=16, rest=None) == layout == Layout.from_json(layout.to_json())
    with PartitionPool(dev) as pool:
        assert pool.switch({Part.ENCODE: 16, Part.REST: None}) is pool.switch(encode=16, rest=None)


def test_words_that_used_to_be_taken_and_soft_keywords_are_names() -> None:
    assert Layout(rest=8, match=8, case=8, type=8).names == ("rest", "match", "case", "type")


def test_an_aligned_rest_is_asked_for_by_name() -> None:
    arguments: tuple[Any, ...] = (None, None, True)
    with pytest.raises(TypeError):
        PartitionSpec(*arguments)
