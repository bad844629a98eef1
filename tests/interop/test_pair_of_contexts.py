"""How a server overlaps two kinds of kernels with cuda.core: one context with n SMs, and one with all others.

The program is the same for both libraries but for the import.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from cuda_gctx import ResourceOverlapWarning

from ..common import DRIVERS, NEW_DRIVERS, run_with_cuda_core

PROGRAM = """
import json
from {library} import ContextOptions, Device, SMResourceOptions, StreamOptions

answers = []


class Pair:
    def __init__(self, device, count):
        groups, self.remainder = device.resources.sm.split(
            SMResourceOptions(count=(count, 0), coscheduled_sm_count=(2, 2))
        )
        self.contexts = [device.create_context(ContextOptions(resources=[group])) for group in groups]
        self.streams = [context.create_stream(StreamOptions(nonblocking=True)) for context in self.contexts]
        self.counts = [stream.resources.sm.sm_count for stream in self.streams]
        assert self.counts == [group.sm_count for group in groups]
        assert len({{int(stream.handle) for stream in self.streams}}) == 2
        assert all(context.is_green for context in self.contexts)

    def close(self):
        # Streams before their contexts, the last one first.
        for stream in self.streams:
            stream.sync()
        for owned in [*reversed(self.streams), *reversed(self.contexts)]:
            owned.close()


device = Device(0)
device.set_current()
# Pairs stay open next to each other: one for each shape of work, of which one runs at a time.
pairs = {{count: Pair(device, count) for count in (16, 20, 32, 66, 124)}}
assert len({{int(context.handle) for pair in pairs.values() for context in pair.contexts}}) == 2 * len(pairs)
for count, pair in pairs.items():
    answers.append([count, pair.counts, pair.remainder.sm_count if pair.remainder is not None else 0])
for pair in pairs.values():
    pair.close()
print(json.dumps(answers))
"""

GIVEN = [[count, [count, 132 - count], 0] for count in (16, 20, 32, 66, 124)]


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_pair_of_all_sms_is_the_same_on_every_driver(sim: Any, tmp_path: Path, driver: str) -> None:
    sim("h200", driver=driver)  # nothing is left of them when it ends
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(library="cuda_gctx"))
    # The first pair shares SMs with nothing, each further one with those before it.
    with pytest.warns(ResourceOverlapWarning) as caught:
        done = runpy.run_path(str(program))
    assert done["answers"] == GIVEN
    assert len(caught) == 2 * (len(GIVEN) - 1)


# Of the drivers on which cuda.core refuses, every run has the oldest and the newest.
@pytest.mark.parametrize(
    "driver", [pytest.param(one, marks=pytest.mark.long if one in ("12.5", "12.8") else ()) for one in DRIVERS]
)
def test_a_pair_is_that_of_cuda_core_where_this_can_make_it(driver: str) -> None:
    done = run_with_cuda_core(PROGRAM.format(library="cuda.core"), machine=f"h200@{driver}")
    if driver in NEW_DRIVERS:
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == GIVEN
    else:
        assert done.returncode != 0
