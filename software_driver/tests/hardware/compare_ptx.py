"""Runs random PTX programs on a driver, and compares the results with those that the instruction set documents.

    python compare_ptx.py [--library libcuda.so.1] [--programs 300] [--seed 0]

Prints each difference; the status is 1 if there is one. Needs a card of compute capability 8.0 or newer.
"""

from __future__ import annotations

import argparse

from ptx_programs import Driver, differences, make_program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default="libcuda.so.1")
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    driver, wrong = Driver(options.library), 0
    for seed in range(options.seed, options.seed + options.programs):
        program = make_program(seed)
        for difference in differences(program, driver.run(program)):
            wrong += 1
            print(f"program {seed}: {difference}")
    print(f"{options.programs} programs, {wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
