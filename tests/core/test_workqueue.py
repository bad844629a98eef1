"""Workqueue resources: refused by drivers that have none, and never half applied by those that have."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

import cuda_gctx
from cuda_gctx import Context, ContextOptions, Device, FeatureNotSupported, WorkqueueResourceOptions, system
from cuda_gctx.tune import spin

from ..common import NEW_DRIVERS, OLD_DRIVERS, green, leases, refusal, split

Machines = Callable[..., Any]


@pytest.mark.parametrize("driver", OLD_DRIVERS)
def test_older_drivers_refuse_with_needs_and_found(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    dev = Device(0)
    (group,), _ = split(dev.resources.sm, 8)
    with green(dev, group) as ctx, ctx.create_stream() as stream:
        for resources in (dev.resources, ctx.resources, stream.resources, dev.context.resources):
            error = refusal(FeatureNotSupported, lambda resources=resources: resources.workqueue)
            assert (error.needs, error.found) == ("13.1", driver)
            assert "13.1" in str(error)
            assert driver in str(error)


def test_a_real_driver_has_them_or_says_why_not(dev: Device) -> None:
    if cuda_gctx.system.features()["workqueues"]:
        assert dev.resources.workqueue.concurrency_limit >= 1
    else:
        with pytest.raises(FeatureNotSupported, match=r"workqueue.*13\.1"):
            dev.resources.workqueue  # noqa: B018


@pytest.mark.parametrize("driver", NEW_DRIVERS)
@pytest.mark.parametrize("scope", ["device_ctx", "green_ctx_balanced"])
@pytest.mark.parametrize("limit", [1, 4, 32])
def test_scope_and_limit_round_trip_through_a_context(sim: Machines, driver: str, scope: str, limit: int) -> None:
    sim("h200", driver=driver)
    dev = Device(0)
    (group,), _ = split(dev.resources.sm, 16)
    queue = dev.resources.workqueue
    queue.configure(WorkqueueResourceOptions(sharing_scope=scope, concurrency_limit=limit))
    assert (queue.sharing_scope, queue.concurrency_limit, queue.device) == (scope, limit, dev)
    assert scope in repr(queue)
    assert str(limit) in repr(queue)
    for resources in ([group, queue], [queue, group]):
        with dev.create_context(ContextOptions(resources=resources)) as ctx:
            given = ctx.resources.workqueue
            assert (given.sharing_scope, given.concurrency_limit) == (scope, limit)
            assert ctx.sm_count == 16
            with ctx.create_stream() as stream:
                assert stream.resources.workqueue.concurrency_limit == limit


@pytest.mark.parametrize("driver", NEW_DRIVERS)
def test_no_option_is_dropped(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    queue = Device(0).resources.workqueue
    queue.configure(WorkqueueResourceOptions("green_ctx_balanced", 5))
    queue.configure(WorkqueueResourceOptions(concurrency_limit=7))
    assert (queue.sharing_scope, queue.concurrency_limit) == ("green_ctx_balanced", 7)
    queue.configure(WorkqueueResourceOptions(sharing_scope="device_ctx"))
    assert (queue.sharing_scope, queue.concurrency_limit) == ("device_ctx", 7)
    queue.configure(WorkqueueResourceOptions())
    assert (queue.sharing_scope, queue.concurrency_limit) == ("device_ctx", 7)


def test_each_access_is_a_copy_of_its_own(sim: Machines) -> None:
    sim("h200", driver="13.1")
    resources = Device(0).resources
    one, other = resources.workqueue, resources.workqueue
    before = other.concurrency_limit
    one.configure(WorkqueueResourceOptions(concurrency_limit=before + 1))
    assert other.concurrency_limit == resources.workqueue.concurrency_limit == before
    assert one.handle != other.handle


def test_configuring_later_does_not_change_what_options_were_given(sim: Machines) -> None:
    sim("h200", driver="13.1")
    dev = Device(0)
    (group, other), _ = split(dev.resources.sm, [8, 8])
    queue = dev.resources.workqueue
    queue.configure(WorkqueueResourceOptions("green_ctx_balanced", 2))
    with green(dev, group, queue) as first:
        queue.configure(WorkqueueResourceOptions("device_ctx", 3))
        with green(dev, other, queue) as second:
            assert first.resources.workqueue.concurrency_limit == 2
            assert second.resources.workqueue.concurrency_limit == 3


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"concurrency_limit": 0}, ValueError),
        ({"concurrency_limit": -1}, ValueError),
        ({"concurrency_limit": 2**32}, ValueError),
        ({"concurrency_limit": True}, TypeError),
        ({"concurrency_limit": 1.0}, TypeError),
        ({"concurrency_limit": "1"}, TypeError),
        ({"sharing_scope": "balanced"}, ValueError),
        ({"sharing_scope": ""}, ValueError),
        ({"sharing_scope": "GREEN_CTX_BALANCED"}, ValueError),
        ({"sharing_scope": 1}, TypeError),
        ({"sharing_scope": b"device_ctx"}, TypeError),
        ({"sharing_scope": None, "concurrency_limit": 0}, ValueError),
        ({"sharing_scope": "balanced", "concurrency_limit": 4}, ValueError),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"concurrency_limit|sharing_scope"):
        WorkqueueResourceOptions(**options)


def test_options_are_values(sim: Machines) -> None:
    options = WorkqueueResourceOptions("device_ctx", 4)
    assert (options.sharing_scope, options.concurrency_limit) == ("device_ctx", 4)
    assert options == WorkqueueResourceOptions(sharing_scope="device_ctx", concurrency_limit=4)
    assert options != WorkqueueResourceOptions("device_ctx")
    assert len({options, WorkqueueResourceOptions("device_ctx", 4)}) == 1
    with pytest.raises(AttributeError):
        options.concurrency_limit = 5  # type: ignore[misc]


@pytest.mark.parametrize("wrong", [None, {"scope": "device_ctx"}, "device_ctx", 4])
def test_configure_takes_options_alone(sim: Machines, wrong: Any) -> None:
    sim("h200", driver="13.1")
    queue = Device(0).resources.workqueue
    before = queue.concurrency_limit
    with pytest.raises(TypeError):
        queue.configure(wrong)
    assert queue.concurrency_limit == before


def test_a_context_takes_one_workqueue_of_its_own_device(sim: Machines) -> None:
    sim("h200", driver="13.1", devices=2)
    dev = Device(0)
    (group,), _ = split(dev.resources.sm, 8)
    queue = dev.resources.workqueue
    with pytest.raises(ValueError, match="more than one WorkqueueResource"):
        green(dev, group, queue, dev.resources.workqueue)
    with pytest.raises(ValueError, match="device 1"):
        green(dev, group, Device(1).resources.workqueue)
    assert leases() == 0


def test_a_workqueue_alone_is_a_context_over_all_sms(sim: Machines) -> None:
    sim("h200", driver="13.1")
    dev = Device(0)
    queue = dev.resources.workqueue
    queue.configure(WorkqueueResourceOptions("green_ctx_balanced", 4))
    with green(dev, queue) as ctx:
        assert ctx.sm_count == dev.sm_count
        assert ctx.resources.workqueue.concurrency_limit == 4


STRUCTURE = 144  # bytes of a CUdevResource
EXISTING = 10000


def kind_and_bytes(queue: cuda_gctx.WorkqueueResource) -> tuple[int, bytes]:
    """The type of the structure that a context would get, and all of it."""
    data = ctypes.string_at(queue.handle, STRUCTURE)
    return int.from_bytes(data[:4], "little"), data


@pytest.mark.parametrize("driver", NEW_DRIVERS)
def test_the_workqueue_of_a_context_is_shared_by_the_contexts_made_with_it(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    dev = Device(0)
    groups, _ = split(dev.resources.sm, [8, 8, 8])
    own = dev.resources.workqueue
    own.configure(WorkqueueResourceOptions("green_ctx_balanced", 1))

    def together(one: Context, other: Context) -> float:
        """When 5 ms of work in the other one end, in milliseconds, that come behind 5 ms and 5 ms more in the first."""
        begin, end = (dev.create_event({"timing_enabled": True}) for _ in range(2))
        with one.create_stream() as first, other.create_stream() as second:
            for stream in (first, second):
                spin(stream, 1, 0)
            dev.sync()
            second.wait(first.record(begin))
            for stream in (first, first, second):
                spin(stream, 1, 5_000_000)
            second.record(end)
            dev.sync()
        return end - begin

    with (
        green(dev, groups[0], own) as source,
        green(dev, groups[1], own) as apart,
        green(dev, groups[2], source.resources.workqueue) as sharing,
    ):
        queue = sharing.resources.workqueue
        assert kind_and_bytes(queue)[0] == EXISTING
        assert kind_and_bytes(queue) == kind_and_bytes(source.resources.workqueue)
        assert kind_and_bytes(queue) != kind_and_bytes(apart.resources.workqueue)
        assert together(source, sharing) >= 10  # one queue for both
        assert together(source, apart) < 10


def test_a_workqueue_of_a_context_that_is_configured_is_one_of_its_own(sim: Machines) -> None:
    sim("h200", driver="13.1")
    dev = Device(0)
    groups, _ = split(dev.resources.sm, [8, 8])
    queue = dev.resources.workqueue
    assert kind_and_bytes(queue)[0] != EXISTING
    queue.configure(WorkqueueResourceOptions("green_ctx_balanced", 2))
    with green(dev, groups[0], queue) as source:
        changed = source.resources.workqueue
        changed.configure(WorkqueueResourceOptions())  # changes nothing
        assert kind_and_bytes(changed)[0] == EXISTING
        changed.configure(WorkqueueResourceOptions(concurrency_limit=3))
        assert kind_and_bytes(changed)[0] != EXISTING
        assert (changed.sharing_scope, changed.concurrency_limit) == ("green_ctx_balanced", 3)
        with green(dev, groups[1], changed) as other:
            assert other.resources.workqueue.concurrency_limit == 3
            ours, theirs = (ctx.resources.workqueue for ctx in (source, other))
            assert kind_and_bytes(ours) != kind_and_bytes(theirs)


def test_a_context_whose_queues_are_shared_lives_on(sim: Machines) -> None:
    sim("h200", driver="13.1")
    dev = Device(0)
    groups, _ = split(dev.resources.sm, [8, 8])
    source = green(dev, groups[0], dev.resources.workqueue)
    queues = [source.resources.workqueue]
    sharing = green(dev, groups[1], *queues)
    source.close()
    released = system.release_contexts()
    assert (released.destroyed, released.in_use) == (0, 1)
    assert "closed" in str(refusal(RuntimeError, lambda: green(dev, groups[0], *queues)))
    sharing.close()
    assert system.release_contexts().destroyed == 1  # and with it goes the use of the other one
    assert system.release_contexts().destroyed == 1
