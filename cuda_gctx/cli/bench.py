"""``cuda-gctx bench``: what each call of the package costs beside the raw driver call and cuda.core."""

from __future__ import annotations

from subprocess import CalledProcessError
from typing import Any

import click

from cuda_gctx import Device
from cuda_gctx.bench.call_costs import QUICK, Effort, measure_in_fresh_process
from cuda_gctx.cli._exit import Failure
from cuda_gctx.cli._options import json_option, open_driver
from cuda_gctx.cli._output import console, on_what, table, write_json
from cuda_gctx.draw.durations import spread

SIMULATED = "simulated: these are times of the software driver, not of a GPU, and nothing is compared\n"
LEGEND = "Medians, and in brackets the 10th and the 90th percentile."


def _time(call: dict[str, Any], side: str) -> str | None:
    contestant = call["contestants"].get(side, {})
    return spread(contestant["ns"]) if "ns" in contestant else "refused" if "refused" in contestant else None


def _ratio(call: dict[str, Any], side: str) -> float | None:
    ours, theirs = (call["contestants"].get(name, {}).get("ns") for name in ("cuda_gctx", side))
    return round(ours["median"] / theirs["median"], 2) if ours and theirs else None


def _refusals(result: dict[str, Any]) -> list[str]:
    """Why a call has no time, in the words of who refused it."""
    return [
        f"{side}, {call['title']}: {call['contestants'][side]['refused']}"
        for call in result["calls"]
        for side in ("raw", "cuda_gctx", "cuda.core")
        if "refused" in call["contestants"].get(side, {})
    ]


def _machine(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["packages"].items())
    driver = f"driver {result['driver']}, " if result["driver"] else ""
    return f"{result['card']}, {driver}CUDA {result['cuda']}, {result['cpu']}, Python {result['python']}, {versions}\n"


def _show(result: dict[str, Any]) -> None:
    out = console()
    if result["simulated"]:
        out.print(SIMULATED)
    out.print(_machine(result), soft_wrap=True)
    columns = {
        "call": [call["title"] for call in result["calls"]],
        "raw, in C": [_time(call, "raw") for call in result["calls"]],
        "cuda_gctx": [_time(call, "cuda_gctx") for call in result["calls"]],
        "to raw": [_ratio(call, "raw") for call in result["calls"]],
        "cuda.core": [_time(call, "cuda.core") for call in result["calls"]],
        "to cuda.core": [_ratio(call, "cuda.core") for call in result["calls"]],
    }
    legend = f"\n{LEGEND}"
    if result["simulated"]:
        del columns["to raw"], columns["to cuda.core"]
    else:
        legend += " A ratio below 1: cuda_gctx is faster."
    out.print(table(list(columns), zip(*columns.values(), strict=True)))
    out.print()
    imports = [(entry["does"], spread(entry["ns"])) for entry in result["imports"]]
    out.print(table(("statement", "beyond a bare interpreter"), imports))
    out.print(legend)
    for refusal in _refusals(result):
        out.print(f"Refused by {refusal}", soft_wrap=True)


@click.command()
@click.option("--quick", is_flag=True, help="A tenth of the samples: for a look, not for a result to keep.")
@json_option
def bench(quick: bool, as_json: bool) -> None:
    """Times the calls of this package beside raw driver calls in C and beside cuda.core, by turns, on device 0.

    Takes some seconds, in a process of its own. Each contestant makes and closes 50 contexts there (--quick: 5), each
    of which costs 4 MiB of device memory until that process ends.
    """
    # What is missing is told here in one line; the process that measures would need many.
    open_driver()
    device = Device(0)
    device.resources.sm  # noqa: B018
    try:
        result = measure_in_fresh_process(QUICK if quick else Effort())
    except CalledProcessError as error:
        raise Failure(
            f"the process that measures ended with status {error.returncode}: its own words are above"
        ) from None
    if as_json:
        write_json("bench", {**on_what(device), "report": result})
    else:
        _show(result)
