"""Random PTX programs have the results that the instruction set documents, bit by bit, on the software driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuda_software_driver import library_path, session

from .hardware.ptx_programs import Driver, differences, make_program

PROGRAMS, GROUP = 300, 30


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with session("h200"):
        driver = Driver(library_path())
        yield driver
        driver.call("cuDevicePrimaryCtxRelease_v2", 0)


@pytest.mark.parametrize("first", range(0, PROGRAMS, GROUP))
def test_random_programs_have_the_documented_results(driver: Driver, first: int) -> None:
    found = [
        f"program {seed}: {difference}"
        for seed in range(first, first + GROUP)
        for program in [make_program(seed)]
        for difference in differences(program, driver.run(program))
    ]
    assert found == []


def test_comparison_tells_a_wrong_bit() -> None:
    program = make_program(0)
    words = [word for values in program.results for word in values]
    assert list(differences(program, words)) == []
    words[33] ^= 1
    (difference,) = differences(program, words)
    assert difference.startswith("result 1 (%r1) of lane 1: ")
