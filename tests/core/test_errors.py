"""Errors: what they carry, that each says what to do, and what is reported where nothing can be raised."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import (
    CUDAError,
    CUDAWarning,
    Device,
    DriverNotFound,
    FeatureNotSupported,
    ResourceOverlapError,
    ResourceOverlapWarning,
    SplitError,
)
from cuda_software_driver import session

from ..common import leases, small_contexts

Machines = Callable[..., Any]


def test_the_kinds_of_errors_are_what_a_user_would_catch() -> None:
    assert issubclass(CUDAError, RuntimeError)
    assert issubclass(DriverNotFound, CUDAError)
    assert issubclass(FeatureNotSupported, CUDAError)
    assert issubclass(FeatureNotSupported, NotImplementedError)
    assert issubclass(SplitError, ValueError)
    assert issubclass(ResourceOverlapError, ValueError)
    assert issubclass(ResourceOverlapWarning, UserWarning)
    assert issubclass(CUDAWarning, UserWarning)


@pytest.mark.sim_only
def test_closing_goes_on_when_destroying_fails() -> None:
    with session("h200", check=False) as machine:
        (ctx,) = small_contexts(Device(0), 1)
        stream, event = ctx.create_stream(), ctx.create_event()
        machine.fail("cuStreamDestroy")
        machine.fail("cuEventDestroy")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CUDAWarning)
            for thing in (stream, event, ctx):
                thing.close()
        assert stream.is_closed
        assert event.is_closed
        assert ctx.is_closed
        assert leases() == 0
        machine.clear_faults()
