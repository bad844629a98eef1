"""The differences from cuda.core in the table of docs/frameworks.md, on both packages and one simulated machine."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from ..common import run_with_cuda_core

pytestmark = pytest.mark.sim_only

# Prints as JSON, for each question, the answer of cuda.core and the answer of this package: a value, or the name of an
# exception or a warning.
PROGRAM = """
import json, threading, warnings
import cuda.core as theirs
from cuda.core import LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch, system
import cuda_gctx as ours
from cuda_gctx.interop.cuda_core import core_stream

answers = {}
core, dev = theirs.Device(0), ours.Device(0)


def answer(action):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            value = action()
        except Exception as error:
            return type(error).__name__
    return warned[0].category.__name__ if warned else value if isinstance(value, (int, bool, str, list)) else "works"


def ask(name, of_theirs, of_ours):
    answers[name] = [answer(of_theirs), answer(of_ours)]


def split(package, device, **fields):
    return device.resources.sm.split(package.SMResourceOptions(**fields))[0]


def counts(package, device, **fields):
    return [group.sm_count for group in split(package, device, **fields)]


def context(package, device, sms=16):
    return device.create_context(package.ContextOptions(resources=split(package, device, count=sms)))


def closed(thing):
    thing.close()
    return thing.handle


def change(options):
    options.priority = -1
    return options.priority


ask("a stream before set_current", core.create_stream, dev.create_stream)
core.set_current()
for name, fields in {
    "count=None": {"count": None},
    "count=10": {"count": 10},
    "count=10, backfill": {"count": 10, "backfill": True},
    "all SMs by number": {"count": 132},
    "120 SMs, and the others": {"count": [120, None]},
    "uneven counts": {"count": [8, 16]},
    "two groups that do not fit": {"count": [72, 72]},
}.items():
    ask(name, lambda: counts(theirs, core, **fields), lambda: counts(ours, dev, **fields))
ask(
    "alignment with backfill",
    lambda: split(theirs, core, count=10, backfill=True)[0].coscheduled_alignment,
    lambda: split(ours, dev, count=10, backfill=True)[0].coscheduled_alignment,
)
ask(
    "handle of a group",
    lambda: split(theirs, core, count=24)[0].handle > 0,
    lambda: split(ours, dev, count=24)[0].handle > 0,
)
ask("requested", lambda: split(theirs, core, count=16)[0].requested, lambda: split(ours, dev, count=10)[0].requested)
ask("resources by their type", theirs.DeviceResources, ours.DeviceResources)
ask(
    "a stream of a primary context",
    lambda: core.context.create_stream(theirs.StreamOptions()),
    dev.context.create_stream,
)

parts = dev.partition(a=16, b=None)
green = context(theirs, core)
their_stream, our_stream = core.create_stream(), parts.a.stream
ask(
    "recording on a stream of a green context",
    lambda: green.create_stream(theirs.StreamOptions()).record(),
    lambda: parts.a.create_stream().record(),
)
ask("a second context", lambda: context(theirs, core), lambda: context(ours, dev))
ask(
    "recording on the stream of the other package",
    lambda: core_stream(our_stream).record(),
    lambda: ours.Stream(their_stream).record(),
)

options = ProgramOptions(arch=f"sm_{core.arch}")
source = 'extern "C" __global__ void one(float* x) { x[blockIdx.x] = 1; }'
kernel = Program(source, code_type="c++", options=options).compile("cubin").get_kernel("one")
memory = LegacyPinnedMemoryResource().allocate(256)
grid = LaunchConfig(grid=4, block=1)
# The first answer is that for a stream of this package itself, the second one that for its core_stream().
ask(
    "launch",
    lambda: launch(our_stream, grid, kernel, memory),
    lambda: launch(core_stream(our_stream), grid, kernel, memory),
)
ask("fill", lambda: memory.fill(0, stream=our_stream), lambda: memory.fill(0, stream=core_stream(our_stream)))
ask("graph builder", lambda: our_stream.create_graph_builder(), lambda: core_stream(our_stream).create_graph_builder())

ask("number of devices", system.get_num_devices, ours.Device.count)
for name in ("to_system_device", "create_opaque_array", "create_mipmapped_array"):
    ask(name, lambda: hasattr(core, name), lambda: hasattr(dev, name))
others = []
thread = threading.Thread(target=lambda: others.append((theirs.Device(0) is core, ours.Device(0) == dev)))
thread.start()
thread.join()
ask("a device on another thread is the same", lambda: others[0][0], lambda: others[0][1])
ask("changing options", lambda: change(theirs.StreamOptions()), lambda: change(ours.StreamOptions()))
ask("kind of handle", lambda: type(their_stream.handle).__name__, lambda: type(our_stream.handle).__name__)
ask(
    "handle of a closed stream",
    lambda: closed(core.create_stream()),
    lambda: closed(parts.a.create_stream()),
)


def sets_in_a_block():
    with parts.a.context.current():
        dev.set_current(parts.a.context)


ask("set_current in a block", lambda: False, sets_in_a_block)
del our_stream
parts.close()


def again():
    first = context(ours, dev, 32)
    number = first.id
    first.close()
    with context(ours, dev, 32) as second:
        return second.id == number


ask("the same context again", lambda: False, again)
print(json.dumps(answers))
"""

# The question, the driver, and the two answers.
ROWS: list[tuple[str, str, Any, Any]] = [
    ("launch", "13.1", "DeprecationWarning", "works"),
    ("fill", "13.1", "TypeError", "works"),
    ("graph builder", "13.1", "AttributeError", "works"),
    ("a stream of a primary context", "13.1", "RuntimeError", "works"),
    ("handle of a group", "13.0", True, "ValueError"),
    ("handle of a group", "13.1", True, True),
    ("count=None", "13.0", [8], [128]),
    ("count=None", "13.1", [120], [128]),
    ("count=None", "13.4", [132], [128]),
    ("count=10", "13.0", [16], [16]),
    ("count=10", "13.1", "CUDAError", [16]),
    ("count=10", "13.4", [10], [16]),
    ("count=10, backfill", "13.0", [16], [10]),
    ("count=10, backfill", "13.1", [10], [10]),
    ("alignment with backfill", "13.1", 8, 2),
    ("all SMs by number", "13.0", [132], "SplitError"),
    ("all SMs by number", "13.1", "CUDAError", "SplitError"),
    ("all SMs by number", "13.4", [132], "SplitError"),
    ("120 SMs, and the others", "13.1", "CUDAError", "SplitError"),
    ("120 SMs, and the others", "13.4", [120, 12], "SplitError"),
    ("uneven counts", "13.0", "RuntimeError", [8, 16]),
    ("two groups that do not fit", "13.0", [72], "SplitError"),
    ("two groups that do not fit", "13.1", "CUDAError", "SplitError"),
    ("requested", "13.1", "AttributeError", 10),
    ("recording on the stream of the other package", "12.4", "works", "works"),
    ("recording on the stream of the other package", "12.8", "CUDAError", "works"),
    ("recording on the stream of the other package", "13.0", "works", "works"),
    ("recording on a stream of a green context", "12.4", "SystemError", "works"),
    ("recording on a stream of a green context", "12.8", "works", "works"),
    ("resources by their type", "13.1", "RuntimeError", "TypeError"),
    ("a second context", "13.1", "works", "ResourceOverlapWarning"),
    ("a stream before set_current", "13.1", "CUDAError", "works"),
    ("a device on another thread is the same", "13.1", False, True),
    ("number of devices", "13.1", 1, 1),
    ("to_system_device", "13.1", True, False),
    ("create_opaque_array", "13.1", True, False),
    ("create_mipmapped_array", "13.1", True, False),
    ("changing options", "13.1", -1, "AttributeError"),
    ("kind of handle", "13.1", "CUstream", "int"),
    ("handle of a closed stream", "13.1", "works", "ClosedError"),
    ("set_current in a block", "13.1", False, "RuntimeError"),
    ("the same context again", "13.1", False, True),
]


@cache
def answers(driver: str) -> dict[str, list[Any]]:
    """The answers on a driver, from one child."""
    done = run_with_cuda_core(PROGRAM, machine=f"h200@{driver}")
    assert done.returncode == 0, done.stderr
    found: dict[str, list[Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("question", "driver", "theirs", "ours"), ROWS)
def test_difference_from_cuda_core_is_as_the_table_says(question: str, driver: str, theirs: Any, ours: Any) -> None:
    assert answers(driver)[question] == [theirs, ours]
