"""Fixtures of the tests of what is current on a thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuda_gctx import Context, Device

from ..common import small_contexts
from ..raw import Raw


@pytest.fixture
def raw(dev: Device) -> Iterator[Raw]:
    """Raw calls. No context is current on this thread before and after a test."""
    raw = Raw()
    raw.set_current(0)
    yield raw
    assert raw.current() == 0


@pytest.fixture
def two(dev: Device) -> Iterator[list[Context]]:
    """Two disjoint green contexts, which are closed after the test."""
    contexts = small_contexts(dev, 2)
    yield contexts
    for ctx in contexts:
        ctx.close()
