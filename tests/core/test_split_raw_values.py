"""What leaves the package as a number stands for exactly the SMs that its object names; the driver is asked.

CUDA_GCTX_SPLIT_SEED sets the seed of the random splits.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cuda_gctx import Context, Device, SMResource, SMResourceOptions, SplitError

from ..common import green, refusal, split
from ..raw import DEFAULT_STREAM, RESOURCE_BYTES, SM, Probe, Raw, resource_bytes
from .split_oracle import SM_COUNT_OFFSET, options_of
from .test_split_oracle import SEED, random_request

Machines = Callable[..., Any]

PROFILES = ["h200", "a100", "b200", "rtx5080"]
VERSIONS = ["12.4", "12.8", "13.0", "13.1", "13.4"]
SPLITS = 12  # of each machine


def counts_in(resources: bytes) -> list[int]:
    """The counts of CUdevResources that stand one after the other."""
    return [
        int.from_bytes(resources[at : at + 4], "little")
        for at in range(SM_COUNT_OFFSET, len(resources), RESOURCE_BYTES)
    ]


def described(resources: bytes) -> int:
    """What the driver's descriptor of these resources is."""
    array = (ctypes.c_ubyte * len(resources)).from_buffer_copy(resources)
    return Raw().handle("cuDevResourceGenerateDesc", array, ctypes.c_uint(len(resources) // RESOURCE_BYTES))


@contextmanager
def context_of(descriptor: int) -> Iterator[int]:
    """A context that somebody else makes of a descriptor, as a CUcontext."""
    raw = Raw()
    made = raw.handle("cuGreenCtxCreate", ctypes.c_void_p(descriptor), 0, DEFAULT_STREAM)
    try:
        yield raw.handle("cuCtxFromGreenCtx", ctypes.c_void_p(made))
    finally:
        raw.call("cuGreenCtxDestroy", ctypes.c_void_p(made))


def count_of(context: int) -> int:
    """How many SMs the driver says that a CUcontext has."""
    answer = (ctypes.c_ubyte * RESOURCE_BYTES)()
    Raw().call("cuCtxGetDevResource", ctypes.c_void_p(context), answer, SM)
    return counts_in(bytes(answer))[0]


def sms_of(probe: Probe, descriptor: int) -> set[int]:
    with context_of(descriptor) as context:
        return probe.sms(Context.from_handle(context))


def check_handles(probe: Probe, resource: SMResource, sms: set[int]) -> None:
    assert len(sms) == resource.sm_count
    words = resource_bytes(resource)
    assert len(resource.handles) == resource.unit_count == len(words) // RESOURCE_BYTES
    assert sum(counts_in(words)) == resource.sm_count
    assert sms_of(probe, described(words)) == sms
    assert sms_of(probe, resource.descriptor()) == sms
    assert resource.descriptor() == resource.descriptor()
    with context_of(resource.descriptor()) as context:
        assert count_of(context) == resource.sm_count
    if resource.unit_count == 1:
        assert resource.handle == resource.handles[0]
        assert counts_in(ctypes.string_at(resource.handle, RESOURCE_BYTES)) == [resource.sm_count]
    else:
        message = str(refusal(ValueError, lambda: resource.handle))
        assert "handles" in message
        assert "descriptor()" in message


def check_context(probe: Probe, context: Context) -> set[int]:
    """The SMs of a context, if all that it gives away says the same."""
    sms = probe.sms(context)
    assert count_of(context.handle) == context.sm_count == context.resources.sm.sm_count == len(sms)
    assert probe.sms(Context.from_handle(context.handle)) == sms
    with context.create_stream() as stream:
        assert Raw().context_of_stream(stream.handle) == context.handle
        assert stream.__cuda_stream__() == (0, stream.handle)
        assert stream.resources.sm.sm_count == len(sms)
    check_handles(probe, context.resources.sm, sms)
    return sms


@pytest.mark.parametrize("driver", VERSIONS)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_raw_value_stands_for_the_sms_of_its_object(sim: Machines, profile: str, driver: str) -> None:
    sim(profile, driver=driver)
    dev = Device(0)
    whole = dev.resources.sm
    chance = random.Random(f"{SEED} {profile} raw values")
    wide = 0
    with Probe(dev) as probe:
        check_handles(probe, whole, set(range(whole.sm_count)))
        for _ in range(SPLITS):
            options = options_of(random_request(chance, whole.sm_count, whole.coscheduled_alignment))
            try:
                groups, remainder = whole.split(options)
            except SplitError:
                continue
            for piece in [*groups, remainder]:
                if piece.sm_count:
                    with green(dev, piece) as context:
                        sms = check_context(probe, context)
                    check_handles(probe, piece, sms)
                    wide += piece.unit_count > 1
    # On a driver without the structured split most groups are several units.
    assert wide or driver in ("13.1", "13.4") or profile == "a100", f"{options}: no group of several units was seen"


@pytest.mark.parametrize("driver", VERSIONS)
def test_a_group_of_several_units_has_no_single_handle(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    (group, _), _ = split(Device(0).resources.sm, [16, 8])
    if driver in ("13.1", "13.4"):
        assert group.handles == (group.handle,)
        return
    message = str(refusal(ValueError, lambda: group.handle))
    assert "16 SMs consists of 2 driver resources" in message
    first, second = group.handles
    assert second - first == RESOURCE_BYTES
    assert counts_in(resource_bytes(group)) == [8, 8]


@pytest.mark.parametrize("driver", VERSIONS)
def test_units_are_as_large_as_the_driver_gives_them_where_nothing_is_promised(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    whole = Device(0).resources.sm
    for counts, units in (([128], [1]), ([None], [1]), ([64, 64], [1, 1]), ([96, 32], [3, 1]), ([16, None], [1, 7])):
        groups, _ = split(whole, counts)
        assert [group.unit_count for group in groups] == units
        assert [counts_in(resource_bytes(group))[0] for group in groups if group.unit_count == 1] == [
            group.sm_count for group in groups if group.unit_count == 1
        ]


def test_a_plan_and_no_sms_have_no_raw_values(dev: Device) -> None:
    (planned,), rest = dev.resources.sm.split(SMResourceOptions(8), dry_run=True)
    _, nothing = split(dev.resources.sm, None, backfill=True)
    for resource, words in ((planned, "without dry_run"), (rest, "without dry_run"), (nothing, "no SMs")):
        for use in (lambda: resource.handle, lambda: resource.handles, resource.descriptor):  # noqa: B023
            assert words in str(refusal(ValueError, use))
