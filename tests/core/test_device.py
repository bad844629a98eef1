"""Devices and the driver as a whole."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import cuda_gctx
from cuda_gctx import Device, StreamOptions
from cuda_gctx._core.extension import Feature, System

from ..common import DRIVERS, on_another_thread, refusal

# The version that brought each feature (docs/drivers.md).
FEATURES = {
    "green_contexts": "12.4",
    "green_stream_create": "12.5",
    "context_events": "12.5",
    "green_context_ids": "12.9",
    "structured_split": "13.1",
    "workqueues": "13.1",
    "stream_resources": "13.1",
    "locality_domains": "13.4",
    "supplemental_sms": "13.5",
}


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def test_a_device_has_its_properties(dev: Device) -> None:
    assert dev.device_id == 0
    assert dev.name
    assert dev.sm_count == dev.resources.sm.sm_count > 0
    assert len(dev.uuid.split("-")) == 5
    assert len(dev.uuid) == 36
    assert dev.pci_bus_id.count(":") == 2
    major, minor = dev.compute_capability
    assert major >= 6
    assert minor >= 0
    for word in ("Device 0", dev.name, str(dev.sm_count)):
        assert word in repr(dev)


def test_the_simulated_card_says_that_it_is_simulated(sim: Callable[..., Any]) -> None:
    for profile in ("h200", "h100", "a100", "l40s", "rtx4090", "b200"):
        sim(profile)
        assert "simulated" in Device(0).name
        assert Device(0).is_simulated


def test_a_device_is_a_value(dev: Device) -> None:
    assert Device(0) == dev
    assert Device() == dev
    assert hash(Device(0)) == hash(dev)
    assert len({dev, Device(0)}) == 1
    assert pickle.loads(pickle.dumps(dev)) == dev
    assert copy.copy(dev) == dev
    assert dev != 0


def test_devices_of_one_machine_are_distinguished(sim: Callable[..., Any]) -> None:
    sim("h200", devices=2)
    assert Device.count() == 2
    first, second = Device(0), Device(1)
    assert first != second
    assert first.uuid != second.uuid
    assert first.pci_bus_id != second.pci_bus_id
    assert first.context != second.context
    assert first.resources.sm.device == first
    assert second.resources.sm.device == second


def test_a_device_works_on_any_thread_with_nothing_current(dev: Device) -> None:
    def use() -> int:
        with dev.create_stream() as stream, stream.record() as event:
            event.sync()
        dev.sync()
        return Device().resources.sm.sm_count

    assert on_another_thread(use) == dev.sm_count


def test_methods_of_a_device_use_that_device_whatever_is_current(sim: Callable[..., Any]) -> None:
    sim("h200", devices=2)
    with Device(0).context.current():
        with Device(1).create_stream() as stream, Device(1).create_event() as event:
            assert stream.device == event.device == Device(1)
            stream.record(event)
            Device(1).sync()
        assert Device(0).context.is_current


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (-1, ValueError),
        (64, ValueError),
        (2**70, ValueError),
        (True, TypeError),
        (0.0, TypeError),
        ("0", TypeError),
        ([], TypeError),
    ],
)
def test_a_device_that_does_not_exist_is_refused(dev: Device, wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="device"):
        Device(wrong)


def test_a_wrong_device_is_answered_with_the_right_ones(sim: Callable[..., Any]) -> None:
    for devices, right in ((1, "are 0"), (4, "are 0 to 3")):
        sim("h200", devices=devices)
        assert right in str(refusal(ValueError, lambda: Device(7)))


def test_a_stream_is_created_with_the_arguments_of_cuda_core(dev: Device) -> None:
    priority = dev.priority_range[1]
    with dev.create_stream(options=StreamOptions(priority=priority)) as stream:
        assert stream.priority == priority
        with dev.create_stream(stream) as adopted:
            assert adopted == stream
        assert "has its own" in str(refusal(ValueError, lambda: dev.create_stream(stream, StreamOptions())))


def test_the_primary_context_is_retained_once(sim: Callable[..., Any]) -> None:
    machine = sim()
    for _ in range(3):
        Device(0).context.create_stream().close()
        Device(0).create_event().close()
    assert machine.calls("cuDevicePrimaryCtxRetain") == 1


# ---- the driver


def test_the_driver_reports_its_version_and_path(dev: Device) -> None:
    system = cuda_gctx.system
    assert system.driver_version >= (12, 0)
    assert "libcuda" in system.driver_path
    assert ".." not in system.driver_path
    assert f"{system.driver_version[0]}.{system.driver_version[1]}" in repr(system)


@pytest.mark.parametrize("driver", ["12.3", *DRIVERS, "12.9", "13.5"])
def test_features_are_available_from_the_version_that_brought_them(sim: Callable[..., Any], driver: str) -> None:
    sim("h200", driver=driver)
    assert cuda_gctx.system.driver_version == version(driver)
    features = cuda_gctx.system.features()
    assert {name: feature.needs for name, feature in features.items()} == FEATURES
    for name, feature in features.items():
        available = version(driver) >= version(FEATURES[name])
        assert (feature.name, feature.available, bool(feature)) == (name, available, available)
        if available:
            assert feature.reason is None
        else:
            assert feature.reason is not None
            assert FEATURES[name] in feature.reason
            assert driver in feature.reason
        assert name in repr(feature)


@pytest.mark.parametrize("kind", [Feature, cuda_gctx.SMResource, cuda_gctx.Context, cuda_gctx.Event])
def test_what_is_an_answer_cannot_be_made_by_hand(kind: type) -> None:
    with pytest.raises(TypeError, match=r"comes? from|is an answer"):
        kind()


def test_there_is_one_system() -> None:
    assert isinstance(cuda_gctx.system, System)
