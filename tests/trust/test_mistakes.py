"""What a reader of a message learns who made one of these mistakes: what is wrong, and what to write in its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cuda_gctx import Device, Partitions, Stream, tune
from cuda_gctx.partitions import layout_of_text
from cuda_software_driver import Session, session

from ..common import run_python

pytestmark = pytest.mark.sim_only

MISTAKES: dict[str, tuple[Callable[[Partitions, Session], object], type[Exception], str]] = {
    "a partition in the place of its stream": (
        lambda parts, _: tune.spin(parts.decode, 1, 0),  # type: ignore[arg-type]
        TypeError,
        r"stream must be a Stream, such as the stream of a partition \(part\.stream\), not Partition",
    ),
    "work without a place": (
        lambda parts, _: tune.explain(print, print),  # type: ignore[arg-type]
        TypeError,
        r"pairs \(stream, work\), where work is called with the stream, not <built-in function print>",
    ),
    "a partition too many": (
        lambda parts, _: parts[2],
        IndexError,
        "there is no partition 2: there are 2 partitions, decode, prefill",
    ),
    "the command line's word": (
        lambda parts, _: Device().partition(decode="rest"),  # type: ignore[arg-type]
        TypeError,
        "not str; None requests all remaining SMs",
    ),
    "a name twice": (
        lambda parts, _: layout_of_text("decode=16,decode=8"),
        ValueError,
        "different name: 'decode' is given twice",
    ),
    "a stream of nothing": (
        lambda parts, _: Stream(),  # type: ignore[call-arg]
        TypeError,
        r"a Stream comes from create_stream\(\) of a device, context or partition",
    ),
    "a function that no driver has": (
        lambda parts, machine: machine.fail("cuGreenContextCreate"),
        ValueError,
        r"'cuGreenContextCreate' is not a function of the software driver: did you mean 'cuGreenCtxCreate'\?",
    ),
    "a card that nobody knows": (
        lambda parts, _: session("h300").__enter__(),
        ValueError,
        "^cannot simulate 'h300,.*: no card 'h300' is modelled: known are h200,",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_message_says_what_to_write(mistake: str) -> None:
    make, kind, words = MISTAKES[mistake]
    with (
        session("h200") as machine,
        Device().partition(decode=16, prefill=None) as parts,
        pytest.raises(kind, match=words),
    ):
        make(parts, machine)


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        ("SIM", "CUDA_GCTX_DRIVER=SIM is not a driver: did you mean sim"),
        ("simulated", "CUDA_GCTX_DRIVER=simulated is not a driver: did you mean sim"),
        ("sim:h200@13", "CUDA_GCTX_DRIVER=sim:h200@13: a driver version is MAJOR.MINOR, not '13': known are 12.3,"),
    ],
)
def test_a_variable_that_is_nearly_right_is_named(driver: str, words: str) -> None:
    done = run_python("from cuda_gctx import Device; Device()", CUDA_GCTX_DRIVER=driver)
    assert words in done.stderr
