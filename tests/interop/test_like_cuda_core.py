"""What a user of cuda.core expects of this package: the same answers and exceptions, and cuda.core's own objects."""

from __future__ import annotations

import gc
import pickle
from enum import Enum
from typing import Any

import pytest

from cuda_gctx import (
    Context,
    ContextOptions,
    CUDAError,
    Device,
    DeviceResources,
    SMResource,
    SMResourceOptions,
    SplitError,
    WorkqueueResource,
    WorkqueueResourceOptions,
    WorkqueueSharingScopeType,
)

from ..common import run_with_cuda_core


def context(dev: Device, sms: int) -> Context:
    [group], _ = dev.resources.sm.split(sms)
    return dev.create_context(ContextOptions([group]))


# ---- set_current


def test_set_current_returns_the_very_object_that_was_current(dev: Device) -> None:
    before = dev.set_current(None)
    try:
        with context(dev, 16) as ctx:
            previous = dev.set_current(ctx)
            try:
                assert previous == dev.context
            finally:
                assert dev.set_current(previous) is ctx
            assert dev.set_current(dev.context) is previous
    finally:
        if before is not None:
            dev.set_current(before)


def test_an_object_that_is_gone_is_not_returned(dev: Device) -> None:
    with context(dev, 16) as ctx:
        before = dev.set_current(Context.from_handle(ctx.handle))
        gc.collect()
        again = dev.set_current(before)
        assert again == ctx
        assert again is not ctx


# ---- errors


@pytest.mark.sim_only
@pytest.mark.parametrize("driver", ["12.8", "13.0", "13.1", "13.4"])
def test_a_split_that_does_not_fit_is_a_cuda_error_with_the_drivers_code(sim: Any, driver: str) -> None:
    sim("h200", driver=driver)
    with pytest.raises(CUDAError, match="CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION") as raised:
        Device(0).resources.sm.split(SMResourceOptions([72, 72]))
    error = raised.value
    assert isinstance(error, SplitError)
    assert isinstance(error, ValueError)
    assert (error.code, error.name) == (915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, again.suggestion) == (str(error), 915, error.suggestion)


def test_partitions_that_do_not_fit_raise_the_same(dev: Device) -> None:
    for among in ("all", "free"):
        with pytest.raises(CUDAError, match=r"\(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\)$") as raised:
            dev.partition(first=dev.sm_count, second=dev.sm_count, among=among)
        assert str(raised.value).count("CUDA_ERROR") == 1
        assert isinstance(raised.value, SplitError)


def test_a_context_without_resources_is_a_value_error(dev: Device) -> None:
    for action in (dev.create_context, lambda: dev.create_context(None), lambda: ContextOptions(resources=None)):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="resources must be provided"):
            action()
    with pytest.raises(TypeError):
        dev.create_context(object())  # type: ignore[arg-type]


# ---- the scope of workqueues


def test_a_scope_is_an_enum_that_equals_its_string() -> None:
    scope = WorkqueueResourceOptions(sharing_scope="device_ctx").sharing_scope
    assert scope is WorkqueueSharingScopeType.DEVICE_CTX
    assert isinstance(scope, Enum)
    assert scope == "device_ctx"
    assert (f"{scope}", str(scope), hash(scope)) == ("device_ctx", "device_ctx", hash("device_ctx"))
    assert pickle.loads(pickle.dumps(scope)) is scope
    assert [one.value for one in WorkqueueSharingScopeType] == ["device_ctx", "green_ctx_balanced"]
    with pytest.raises(
        ValueError, match=r"'bogus' is not a valid WorkqueueSharingScopeType\. Must be one of device_ctx"
    ):
        WorkqueueResourceOptions(sharing_scope="bogus")


@pytest.mark.sim_only
def test_a_workqueue_has_the_scope_that_it_was_given(sim: Any) -> None:
    sim("h200", driver="13.1")
    workqueue = Device(0).resources.workqueue
    for scope in WorkqueueSharingScopeType:
        workqueue.configure(WorkqueueResourceOptions(sharing_scope=scope))
        assert workqueue.sharing_scope is scope


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: WorkqueueResourceOptions(concurrency_limit=0), "concurrency_limit must be >= 1, not 0"),
        (lambda: WorkqueueResourceOptions(concurrency_limit=-3), "concurrency_limit must be >= 1, not -3"),
        (lambda: SMResourceOptions(count=-1), "count must be non-negative"),
    ],
)
def test_numbers_that_are_too_small_are_refused_in_the_same_words(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options()


@pytest.mark.parametrize("kind", [DeviceResources, SMResource, WorkqueueResource])
def test_resources_are_not_made_by_their_types(kind: Any) -> None:
    with pytest.raises(TypeError, match="come"):
        kind()


def test_a_primary_context_creates_streams(dev: Device) -> None:
    with dev.context.create_stream() as stream:
        assert stream.context == dev.context


# ---- devices


def test_a_device_has_an_architecture_and_all_devices_are_listed(dev: Device) -> None:
    major, minor = dev.compute_capability
    assert dev.arch == f"{major}{minor}"
    assert Device.get_all_devices()[dev.device_id] == dev
    assert len(Device.get_all_devices()) == Device.count()


PROGRAM = """
import cuda.core
from cuda_gctx import Device, Stream
from cuda_gctx.interop.cuda_core import core_stream


def main():
    dev = Device(0)
    core = cuda.core.Device(0)
    assert dev.properties.multiprocessor_count == dev.sm_count
    with dev.partition(16) as parts:
        buffer = dev.allocate(1024, stream=parts[0].stream)
        assert isinstance(buffer, cuda.core.Buffer) and buffer.size == 1024
        buffer.close(stream=core_stream(parts[0]))
    assert dev.memory_resource is core.memory_resource
    with dev.context.current():
        core.set_current()
        other = cuda.core.DeviceMemoryResource(0)
    dev.memory_resource = other
    assert core.memory_resource is other
    default = dev.default_stream
    assert isinstance(default, Stream) and default.handle == int(core.default_stream.handle)
    assert default.context == dev.context
    expected = core.can_access_peer(1)
    assert dev.can_access_peer(Device(1)) == dev.can_access_peer(1) == expected
    with dev.context.current():
        builder = dev.create_graph_builder()
        assert type(builder).__name__ == "GraphBuilder"
        builder.close()


    theirs = core_stream(dev.context)
    assert core_stream(theirs) is theirs


main()
print("done")
"""


def test_what_the_package_does_not_do_itself_cuda_core_does() -> None:
    done = run_with_cuda_core(PROGRAM, machine="h200@13.0,devices=2")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
