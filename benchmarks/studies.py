"""Studies on real work: pairs that people want to run at once, and what the tuner says of each.

    python benchmarks/studies.py [--out DIR] [--only NAME] [--budget SECONDS]

- product-sigmoid: an 8192 x 8192 x 8192 bf16 product beside an 8192 x 8192 sigmoid.
- prefill-decode: large products, as in a prefill, beside products of 16 rows, which read weights, as in a decode.
- critical-hog: a short kernel of which the slowest calls count, beside products that never end.

Needs torch and a GPU. The study of two GPUs is benchmarks/allreduce.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tables
from machine import described, file_name, folder_of_results

from cuda_gctx import Device, tune

SIZE = 8192


def product_and_sigmoid(torch: Any) -> tuple[dict[str, Callable[[Any], object]], Any]:
    a, b, x = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out, y = torch.empty_like(a), torch.empty_like(x)
    return {
        "product": lambda stream: torch.mm(a, b, out=out),
        "sigmoid": lambda stream: torch.sigmoid(x, out=y),
    }, "makespan"


def prefill_and_decode(torch: Any) -> tuple[dict[str, Callable[[Any], object]], Any]:
    tokens = torch.randn(4096, SIZE, device="cuda", dtype=torch.bfloat16)
    rows = torch.randn(16, SIZE, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    # More than the L2 cache holds, so that each call reads from memory, as the layers of a model do.
    layers = [torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    many, few = torch.empty_like(tokens), torch.empty_like(rows)

    def decode(stream: Any) -> None:
        for layer in layers:
            torch.mm(rows, layer, out=few)

    return {
        "prefill": lambda stream: torch.mm(tokens, weights, out=many),
        "decode": decode,
    }, tune.Throughput(prefill=1, decode=4)


def critical_and_hog(torch: Any) -> tuple[dict[str, Callable[[Any], object]], Any]:
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x = torch.randn(256, 4096, device="cuda", dtype=torch.bfloat16)
    out, y = torch.empty_like(a), torch.empty_like(x)
    return {
        "critical": lambda stream: torch.sigmoid(x, out=y),
        "hog": lambda stream: torch.mm(a, b, out=out),
    }, tune.TailLatency("critical", quantile=0.99)


STUDIES: dict[str, tuple[str, Callable[[Any], tuple[dict[str, Callable[[Any], object]], Any]]]] = {
    "product-sigmoid": ("8192 x 8192 x 8192 bf16 product, and sigmoid of 8192 x 8192 bf16", product_and_sigmoid),
    "prefill-decode": (
        "4096 x 8192 x 8192 bf16 product, and four times 16 x 8192 x 8192, four such calls for each product",
        prefill_and_decode,
    ),
    "critical-hog": (
        "sigmoid of 256 x 4096 bf16, one call at a time, beside 8192 x 8192 x 8192 bf16 products without end",
        critical_and_hog,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks/results)")
    parser.add_argument("--only", choices=STUDIES, help="one study")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each study")
    arguments = parser.parse_args()
    import torch

    device = Device(0)
    result: dict[str, Any] = described(device, "Studies of the tuner, written by benchmarks/studies.py")
    result["studies"] = []
    for name, (title, work_of) in STUDIES.items():
        if arguments.only in (None, name):
            work, objective = work_of(torch)
            report = tune.overlap(device=device, objective=objective, budget_s=arguments.budget, **work)
            print(f"\n{name}: {title}\n{report}", flush=True)
            result["studies"].append({"name": name, "title": title, "report": json.loads(report.to_json())})
            del work
            torch.cuda.empty_cache()
    path = folder_of_results(arguments.out, tables.RESULTS) / file_name(result, "studies")
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\n{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
