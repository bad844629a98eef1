"""What each call of the package costs, compared with raw driver calls in C, cuda.core and torch, as a file.

    python benchmarks/calls.py [--out DIR]

Needs the module raw_calls: see benchmarks/raw/CMakeLists.txt. Writes the JSON that benchmarks/render.py reads. On the
software driver the result says "simulated", and nothing is compared.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import render
import reporting
from call_costs import Effort, measure_in_fresh_process

from cuda_gctx.measure.machine import commit_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--out", type=Path, help="folder for the JSON file (default: benchmarks/results; simulated: none)"
    )
    parser.add_argument("--rounds", type=int, default=Effort.rounds, help="samples of each call and contestant")
    parser.add_argument("--imports", type=int, default=Effort.imports, help="processes for each import")
    parser.add_argument("--seed", type=int, default=Effort.seed, help="of the order of the samples")
    arguments = parser.parse_args()

    effort = Effort(rounds=arguments.rounds, imports=arguments.imports, seed=arguments.seed)
    measured = measure_in_fresh_process(effort)
    head = {"_what": "Costs of single calls, written by benchmarks/calls.py; ns per call"}
    result = {**head, **measured, "commit": commit_of(Path(__file__).parent)}
    if result["simulated"]:
        print("simulated: these are times of the software driver, not of a GPU, and nothing is compared\n")
    print(render.calls(result))
    if arguments.out is not None or not result["simulated"]:
        path = reporting.write(result, "calls", arguments.out)
        print(f"\n{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
