"""Many failures, one after the other, leave nothing. `trust/fault_sweep.py` lets each driver call fail in turn."""

from __future__ import annotations

from typing import Any

import pytest

from cuda_gctx import (
    CUDAError,
    Device,
)
from cuda_software_driver import Session, session

from ..common import green, split
from ..raw import Raw

pytestmark = pytest.mark.sim_only


def alive(machine: Session) -> list[Any]:
    """What is alive but for what the package keeps for later: the primary context of the device."""
    return [(found.kind, found.handle) for found in machine.ledger().live if found.kind != "primary context retain"]


@pytest.mark.parametrize("driver", ["12.4", "13.0", "13.4"])
def test_a_limit_of_contexts_is_an_error_that_leaves_nothing(driver: str) -> None:
    with session("h200", driver=driver) as machine:
        dev = Device(0)
        groups, _ = split(dev.resources.sm, [8] * 4)
        machine.limit_contexts(2)
        contexts = [green(dev, group) for group in groups[:2]]
        before = alive(machine)
        for _ in range(3):
            with pytest.raises(CUDAError, match="cuGreenCtxCreate answered CUDA_ERROR_OUT_OF_MEMORY"):
                green(dev, groups[2])
        assert alive(machine) == before
        contexts.pop().close()
        contexts.append(green(dev, groups[2], exclusive=True))
        for ctx in contexts:
            ctx.close()


@pytest.mark.parametrize("seed", range(8))
def test_random_failures_leak_nothing(seed: int) -> None:
    print(f"seed {seed}")
    with session("h200", driver=["12.4", "13.0", "13.1", "13.4"][seed % 4], check=False) as machine:
        dev, raw = Device(0), Raw()
        machine.fail("*", probability=0.05, seed=seed)
        failures = 0
        # Destroying is left out: a driver that cannot destroy leaks by its own hand.
        kept: list[Any] = []
        for _ in range(40):
            try:
                groups, _ = split(dev.resources.sm, [8, 16])
                for group in groups:
                    ctx = green(dev, group)
                    for make in (lambda ctx=ctx: ctx, ctx.create_stream, ctx.record_event):
                        kept.append(make())
            except CUDAError:
                failures += 1
            except Warning:  # an overlap with a context of an earlier round
                pass
        machine.clear_faults()
        assert failures > 0
        # Cleaning up may have failed too: a context that could not be popped is the driver's.
        raw.set_current(0)
        for thing in reversed(kept):
            thing.close()
        del kept
        live = {found.kind for found in machine.ledger().live}
        assert live <= {"primary context retain", "green context", "event", "stream"}
        assert not machine.ledger().misuse
