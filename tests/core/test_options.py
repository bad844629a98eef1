"""Options of splits and workqueues: what cuda.core accepts, values that compare, and copies with other fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import Device, SMResourceOptions, WorkqueueResourceOptions


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


def test_a_copy_can_have_other_fields() -> None:
    options = SMResourceOptions([8, 16], coscheduled_sm_count=8)
    assert options.replace(count=[8, 24]) == SMResourceOptions([8, 24], coscheduled_sm_count=8)
    assert options == SMResourceOptions([8, 16], coscheduled_sm_count=8)
    queues = WorkqueueResourceOptions("green_ctx_balanced", 4)
    assert queues.replace(concurrency_limit=8) == WorkqueueResourceOptions("green_ctx_balanced", 8)
    with pytest.raises(TypeError):
        options.replace(counts=[8])


def test_workqueues_take_a_dict_of_fields(sim: Callable[..., Any]) -> None:
    sim("h200", driver="13.1")
    queue = Device(0).resources.workqueue
    queue.configure({"sharing_scope": "green_ctx_balanced", "concurrency_limit": 4})
    assert (queue.sharing_scope, queue.concurrency_limit) == ("green_ctx_balanced", 4)
    with pytest.raises(TypeError, match="dict of its fields"):
        queue.configure(4)  # type: ignore[arg-type]
