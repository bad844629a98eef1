"""The study's command, in the folder studies:

    python -m serving run --model 8B --load documents    measure costs of steps, then search the goodput of contenders
    python -m serving page                               write the table into the pages, from the results
    python -m serving page --check                       fail where a page differs from the results

A run needs torch, Triton and a GPU, and writes its results after each trial. The results of the study are results.json.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from cuda_gctx import Device
from cuda_gctx.measure.machine import described
from cuda_gctx.measure.results import write_result
from serving import page
from serving.contenders import DECODES
from serving.entrants import ENTRANTS
from serving.loads import LOADS, Load, load_of
from serving.search import goodput
from serving.shapes import SHAPES
from serving.trials import rate_of_prompts, run_trial

REPOSITORY = Path(__file__).resolve().parents[2]
# Where a search begins, as a share of the rate at which prompts alone keep the device busy.
START = 0.7


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m serving",
        description="Prefill next to decode under a limit on the time between tokens: which contender keeps how much?",
    )
    commands = found.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure on this GPU")
    run.add_argument("--out", type=Path, default=Path("serving.json"), help="file of results (default: serving.json)")
    run.add_argument("--model", choices=("8B", "34B"), default="8B", help="shapes of the decoder (default: 8B)")
    run.add_argument(
        "--load", choices=tuple(LOADS), nargs="+", metavar="LOAD", default=list(LOADS), help=f"of {', '.join(LOADS)}"
    )
    run.add_argument(
        "--contender",
        choices=tuple(ENTRANTS),
        nargs="+",
        metavar="CONTENDER",
        default=list(ENTRANTS),
        help=f"of {', '.join(ENTRANTS)}",
    )
    run.add_argument("--distinct-layers", type=int, help="layers with weights of their own, where memory is short")
    write = commands.add_parser("page", help="write the table into the pages")
    write.add_argument("--check", action="store_true", help="change nothing, and fail where a page differs")
    return found


def measure(card: Any, load: Load, contenders: list[str], result: dict[str, Any], out: Path) -> None:
    """The goodput of contenders on a card, under each limit of a load; writes results after each trial."""
    from serving.calibrate import measure_costs

    costs, times = measure_costs(card)
    result["costs"] += [{**one, "load": load.name} for one in times]
    for gap_ms in load.gaps_ms.get(costs.model, ()):
        for name in contenders:

            def keeps(settings: dict[str, Any], rate: float, seed: int, name: str = name, gap: float = gap_ms) -> bool:
                row = run_trial(card, costs, load, gap, name, settings, rate, seed)
                result["trials"].append(row)
                write_result(result, out)
                print(f"{name} {settings} at {rate:.3f}/s, seed {seed}: {'kept' if row['kept'] else 'missed'}")
                return bool(row["kept"])

            settings = ENTRANTS[name].settings(costs)
            found = goodput(settings, keeps, START * rate_of_prompts(load, costs))
            question = {"model": costs.model, "load": load.name, "gap_ms": gap_ms, "contender": name}
            result["goodput"].append({**question, **found._asdict()})
            write_result(result, out)


def run(arguments: argparse.Namespace) -> int:
    # A hardware queue for each stream, before the driver is used. With fewer, streams wait for each other.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    from serving import kernels
    from serving.card import Card
    from serving.model import Model

    device = Device(0)
    head = described(device, "Study of serving, written by studies/serving", REPOSITORY)
    result: dict[str, Any] = {**head, "goodput": [], "costs": [], "trials": []}
    for name in arguments.load:
        load = load_of(name, arguments.model)
        model = Model(
            SHAPES[arguments.model],
            kernels,
            slots=load.sequences,
            length=load.longest,
            distinct_layers=arguments.distinct_layers,
        )
        with Card(device, model, decodes=sorted({min(size, load.sequences) for size in DECODES})) as card:
            measure(card, load, arguments.contender, result, arguments.out)
        del model, card  # before the next one needs their memory
    return 0


def main() -> int:
    arguments = parser().parse_args()
    return run(arguments) if arguments.command == "run" else page.write(check=arguments.check)


if __name__ == "__main__":
    sys.exit(main())
