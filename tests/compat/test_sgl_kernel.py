"""The functions of sgl_kernel.spatial: the same counts wherever theirs are enough, no warning, and nothing that leaks.

On the software driver torch is played by a stand-in (see stand_in_torch.py); on a GPU it is torch itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

import cuda_software_driver as software_driver
from cuda_gctx import Device, Stream
from cuda_gctx.compat.sgl_kernel import create_greenctx_stream_by_value, get_sm_available

from ..common import DRIVERS, refusal

# What SGLang makes of an H200 with eight groups and of an A100, and divisions that its users wrote.
PAIRS = {
    "h200": [(112, 20), (104, 28), (96, 36), (88, 44), (80, 52), (72, 60), (64, 44), (92, 16), (74, 34), (10, 10)],
    "a100": [(92, 16), (82, 26), (64, 44), (54, 54), (16, 44), (74, 34)],
}

# Their way, on the driver's calls: the SMs of both are split off first, and those of the first off a context over them.
# Prints the two sizes for each pair, or null for an error.
NESTED = """
import json, sys
from cuda.bindings import driver

def ask(call, *arguments):
    code, *answer = call(*arguments)
    if int(code) != 0:
        raise RuntimeError(f"{call.__name__}: {code.name}")
    return answer[0] if len(answer) == 1 else answer

DEFAULT_STREAM = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
SM = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
ask(driver.cuInit, 0)
device = ask(driver.cuDeviceGet, 0)
ask(driver.cuDevicePrimaryCtxRetain, device)

def sizes(first, second):
    whole = ask(driver.cuDeviceGetDevResource, device, SM)
    [both], _, _ = ask(driver.cuDevSmResourceSplitByCount, 1, whole, 0, first + second)
    description = ask(driver.cuDevResourceGenerateDesc, [both], 1)
    context = ask(driver.cuGreenCtxCreate, description, device, DEFAULT_STREAM)
    try:
        inner = ask(driver.cuGreenCtxGetDevResource, context, SM)
        [group], _, rest = ask(driver.cuDevSmResourceSplitByCount, 1, inner, 0, first)
        return [group.sm.smCount, rest.sm.smCount]
    finally:
        ask(driver.cuGreenCtxDestroy, context)

answers = []
for pair in json.loads(sys.argv[1]):
    try:
        answers.append(sizes(*pair))
    except RuntimeError:
        answers.append(None)
print(json.dumps(answers))
"""


def theirs(gpu: str, driver: str) -> list[list[int] | None]:
    done = subprocess.run(
        [sys.executable, "-c", NESTED, json.dumps(PAIRS[gpu])],
        env={
            **os.environ,
            "CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING": "1",
            "LD_LIBRARY_PATH": software_driver.library_folder(),
            "CUDA_SOFTWARE_DRIVER_MACHINE": f"{gpu}@{driver}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answers: list[list[int] | None] = json.loads(done.stdout)
    return answers


def sizes(pair: tuple[Any, Any]) -> list[int]:
    return [Stream(stream).resources.sm.sm_count for stream in pair]


@pytest.mark.parametrize("gpu", PAIRS)
@pytest.mark.parametrize("driver", DRIVERS)
def test_the_counts_are_theirs_where_theirs_are_enough(torch: Any, sim: Any, gpu: str, driver: str) -> None:
    sim(gpu, driver=driver)
    equal = 0
    for asked, given in zip(PAIRS[gpu], theirs(gpu, driver), strict=True):
        mine = sizes(create_greenctx_stream_by_value(*asked))
        assert mine[0] >= asked[0], asked
        assert mine[1] >= asked[1], asked
        if given is not None and given[1] >= asked[1]:
            assert mine == given, asked
            equal += 1
    assert equal >= len(PAIRS[gpu]) - 2


# Pairs for which their algorithm leaves the second stream short, or which it refuses.
EXACT = {
    "h200": [(66, 66), (100, 32), (90, 42), (74, 34), (130, 2), (10, 10)],
    "a100": [(106, 2), (90, 18)],
    "b200": [(74, 74), (140, 8), (100, 48)],
}


@pytest.mark.parametrize("gpu", EXACT)
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_pair_that_rounding_would_cut_short_is_given_exactly(torch: Any, sim: Any, gpu: str, driver: str) -> None:
    sim(gpu, driver=driver)
    given = [tuple(sizes(create_greenctx_stream_by_value(*pair))) for pair in EXACT[gpu]]
    assert given == EXACT[gpu]


def test_streams_of_an_exact_pair_share_no_sm(torch: Any, sim: Any) -> None:
    sim("h200")
    pair = create_greenctx_stream_by_value(66, 66)
    first, second = (set(Stream(stream).context.verify().contexts[0].sm_ids) for stream in pair)
    assert (len(first), len(second)) == (66, 66)
    assert first.isdisjoint(second)


def test_odd_counts_of_an_exact_pair_become_even(torch: Any, sim: Any) -> None:
    sim("h200")
    assert sizes(create_greenctx_stream_by_value(75, 33)) == [76, 34]


def test_groups_overlap_without_a_warning_and_the_same_pair_is_made_once(torch: Any, sim: Any) -> None:
    machine = sim("h200")
    kept = [create_greenctx_stream_by_value(*pair) for pair in PAIRS["h200"]]
    made = machine.ledger().green_contexts_made
    for _ in range(3):
        again = [create_greenctx_stream_by_value(*pair, device_id=0) for pair in PAIRS["h200"]]
        assert again == kept
    assert machine.ledger().green_contexts_made == made
    assert machine.ledger().misuse == ()


def test_a_device_has_the_number_of_its_sms(torch: Any, dev: Device) -> None:
    assert get_sm_available() == get_sm_available(0) == dev.sm_count


def test_what_cannot_be_is_a_runtime_error(torch: Any, sim: Any) -> None:
    sim("h200")
    for counts, words in [
        ((0, 8), "must be positive, not 0 and 8"),
        ((8, -1), "must be positive, not 8 and -1"),
        ((120, 20), "Not enough SMs: 120 and 20 are more than the 132 SMs of the device"),
        ((131, 1), "Not enough SMs: 131 and 1 do not fit into the 132 SMs of the device in pairs of 2 SMs"),
        ((140, 8), "Not enough SMs"),
    ]:
        assert words in str(refusal(RuntimeError, lambda counts=counts: create_greenctx_stream_by_value(*counts)))
    assert "there is no device 7" in str(refusal(RuntimeError, lambda: get_sm_available(7)))
    # Nothing is left of what was refused.
    assert sizes(create_greenctx_stream_by_value(112, 20)) == [112, 20]
