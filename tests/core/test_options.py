"""Options of splits and workqueues: what cuda.core accepts, values that compare, and copies with other fields."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import (
    ContextOptions,
    Device,
    EventOptions,
    Layout,
    SMResourceOptions,
    StreamOptions,
    WorkqueueResourceOptions,
)


@pytest.mark.parametrize(
    "asked", [8, [8, 16], (8, 16), {"count": [8, 16]}, {"count": 10, "backfill": True}, SMResourceOptions(8)]
)
def test_a_split_takes_counts_dicts_and_options(dev: Device, asked: Any) -> None:
    options = asked if isinstance(asked, SMResourceOptions) else None
    if options is None:
        options = SMResourceOptions(**asked) if isinstance(asked, dict) else SMResourceOptions(asked)
    groups, rest = dev.resources.sm.split(asked)
    same, same_rest = dev.resources.sm.split(options)
    assert [group.sm_count for group in groups] == [group.sm_count for group in same]
    assert rest.sm_count == same_rest.sm_count


@pytest.mark.parametrize("asked", [None, "8", 8.0, object()])
def test_what_is_not_a_request_is_refused_with_what_is(dev: Device, asked: Any) -> None:
    with pytest.raises(TypeError, match=r"split\(8\)"):
        dev.resources.sm.split(asked)


def test_one_group_and_a_list_of_one_split_alike_and_are_not_equal(dev: Device) -> None:
    one, _ = dev.resources.sm.split(SMResourceOptions(8))
    listed, _ = dev.resources.sm.split(SMResourceOptions([8]))
    assert [group.sm_count for group in one] == [group.sm_count for group in listed]
    assert SMResourceOptions(8) != SMResourceOptions([8])
    assert SMResourceOptions([8]) == SMResourceOptions((8,))
    assert len({SMResourceOptions(8), SMResourceOptions(8), SMResourceOptions([8])}) == 2


@pytest.mark.parametrize(
    "options",
    [
        EventOptions(timing_enabled=True),
        StreamOptions(priority=-1),
        SMResourceOptions([8, None], backfill=[True, False], locality_domain=0),
        WorkqueueResourceOptions("device_ctx", 2),
    ],
    ids=lambda options: type(options).__name__,
)
def test_options_are_the_values_of_their_fields(options: Any) -> None:
    others = [copy.copy(options), pickle.loads(pickle.dumps(options)), eval(repr(options))]
    assert others == [options] * 3
    assert len({options, *others}) == 1
    assert options != type(options)()


def test_a_copy_can_have_other_fields() -> None:
    options = SMResourceOptions([8, 16], coscheduled_sm_count=8)
    assert options.replace(count=[8, 24]) == SMResourceOptions([8, 24], coscheduled_sm_count=8)
    assert options == SMResourceOptions([8, 16], coscheduled_sm_count=8)
    queues = WorkqueueResourceOptions("green_ctx_balanced", 4)
    assert queues.replace(concurrency_limit=8) == WorkqueueResourceOptions("green_ctx_balanced", 8)
    with pytest.raises(TypeError):
        options.replace(counts=[8])


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda dev: dev.create_context({"resources": [dev.resources.sm], "exclusiv": True}),
            "ContextOptions has no field 'exclusiv'; did you mean 'exclusive'?",
        ),
        (lambda dev: dev.create_context({"name": "decode"}), "resources must be provided"),
        (lambda dev: dev.create_stream({"prio": 0}), "StreamOptions has no field 'prio'; did you mean 'priority'?"),
        (lambda dev: dev.context.create_stream({"nonblock": 0}), "did you mean 'nonblocking'?"),
        (lambda dev: dev.create_event({"timing": True}), "EventOptions has no field 'timing'"),
        (lambda dev: dev.create_event({1: True}), "no field 1; its fields are timing_enabled, blocking_sync"),
        (lambda dev: dev.resources.sm.split({"counts": 8}), "no field 'counts'; did you mean 'count'?"),
        (lambda dev: SMResourceOptions(8).replace(counts=16), "SMResourceOptions has no field 'counts'"),
        (lambda dev: dev.create_stream({"priority": "high"}), "priority must be an int from"),
        (
            lambda dev: Layout.from_json('{"schema": 2, "partitions": [{"options": {"counts": 8}}]}'),
            "partitions[0]: SMResourceOptions has no field 'counts'; did you mean 'count'?",
        ),
    ],
)
def test_a_dict_with_a_wrong_field_is_refused_with_the_class_and_the_nearest_field(
    dev: Device, ask: Callable[[Device], object], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        ask(dev)


def test_workqueues_take_a_dict_of_fields(sim: Callable[..., Any]) -> None:
    sim("h200", driver="13.1")
    queue = Device(0).resources.workqueue
    queue.configure({"sharing_scope": "green_ctx_balanced", "concurrency_limit": 4})
    assert (queue.sharing_scope, queue.concurrency_limit) == ("green_ctx_balanced", 4)
    with pytest.raises(TypeError, match="dict of its fields"):
        queue.configure(4)  # type: ignore[arg-type]


def test_a_resource_in_place_of_options_is_answered_with_the_field_that_takes_it(dev: Device) -> None:
    with pytest.raises(TypeError, match=r'a dict of its fields, like \{"resources": \.\.\.\}, not SMResource'):
        dev.create_context(dev.resources.sm)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "change", "same"),
    [
        (StreamOptions(priority=-1), {"nonblocking": False}, {"nonblocking": False, "priority": -1}),
        (EventOptions(timing_enabled=True), {"blocking_sync": True}, {"timing_enabled": True, "blocking_sync": True}),
        (SMResourceOptions([8, 16]), {"backfill": True}, {"count": [8, 16], "backfill": True}),
        (
            WorkqueueResourceOptions(concurrency_limit=4),
            {"sharing_scope": "device_ctx"},
            {"sharing_scope": "device_ctx", "concurrency_limit": 4},
        ),
    ],
)
def test_the_functions_of_dataclasses_take_options(options: Any, change: dict[str, Any], same: dict[str, Any]) -> None:
    assert dataclasses.is_dataclass(options)
    fields = {field.name: field.default for field in dataclasses.fields(options)}
    assert type(options)(**fields) == type(options)()
    assert dataclasses.replace(options, **change) == options.replace(**change) == type(options)(**same)
    assert type(options)(**dataclasses.asdict(options)) == options
    if sys.version_info >= (3, 13):
        assert copy.replace(options, **change) == options.replace(**change)


def test_the_options_of_a_context_are_copied_with_other_fields(dev: Device) -> None:
    (group,), _ = dev.resources.sm.split(16)
    options = ContextOptions([group], name="decode")
    assert dataclasses.replace(options, exclusive=True) == ContextOptions([group], exclusive=True, name="decode")
    assert [field.name for field in dataclasses.fields(options)] == ["resources", "exclusive", "name"]
    assert dataclasses.fields(options)[0].default is dataclasses.MISSING


def test_options_import_dataclasses_only_for_its_functions() -> None:
    code = "import sys; from cuda_gctx import StreamOptions; StreamOptions(); sys.exit('dataclasses' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
