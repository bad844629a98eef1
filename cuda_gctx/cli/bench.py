"""``cuda-gctx bench``: the cost of each call, compared with the raw driver call and cuda.core."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from subprocess import CalledProcessError
from typing import Any

import click

from cuda_gctx.bench.call_costs import QUICK, Effort, measure_in_fresh_process
from cuda_gctx.bench.durations import spread
from cuda_gctx.cli._exit import Failure
from cuda_gctx.cli._options import device_number, device_of, driver_options, open_driver, simulated
from cuda_gctx.cli._output import console, on_what, table, write_json

SIMULATED = "simulated: these are times of the software driver, not of a GPU, and nothing is compared\n"
LEGEND = "Times per call, lower is better: median (10th to 90th percentile)."


def _time(call: dict[str, Any], side: str) -> str | None:
    contestant = call["contestants"].get(side, {})
    return spread(contestant["ns"]) if "ns" in contestant else "refused" if "refused" in contestant else None


def _ratio(call: dict[str, Any], side: str) -> float | None:
    ours, theirs = (call["contestants"].get(name, {}).get("ns") for name in ("cuda_gctx", side))
    return round(ours["median"] / theirs["median"], 2) if ours and theirs else None


def _refusals(result: dict[str, Any]) -> list[str]:
    """The reason why a call has no time, from the contestant."""
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
    out.print(_machine(result))
    columns = {
        "call": [call["title"] for call in result["calls"]],
        "raw, in C": [_time(call, "raw") for call in result["calls"]],
        "cuda_gctx": [_time(call, "cuda_gctx") for call in result["calls"]],
        "/ raw": [_ratio(call, "raw") for call in result["calls"]],
        "cuda.core": [_time(call, "cuda.core") for call in result["calls"]],
        "/ cuda.core": [_ratio(call, "cuda.core") for call in result["calls"]],
    }
    legend = f"\n{LEGEND}"
    if result["simulated"]:
        del columns["/ raw"], columns["/ cuda.core"]
    else:
        legend += " A ratio is the time of cuda_gctx divided by the other; below 1, cuda_gctx is faster."
    out.print(table(list(columns), zip(*columns.values(), strict=True)))
    out.print()
    imports = [(entry["does"], spread(entry["ns"])) for entry in result["imports"]]
    out.print(table(("statement", "time beyond a bare interpreter"), imports))
    out.print(legend)
    for refusal in _refusals(result):
        out.print(f"Refused by {refusal}")


@click.command()
@click.option("--quick", is_flag=True, help="Take a tenth of the samples, for a first look.")
@device_number
@driver_options
def bench(number: int | None, profile: str | None, version: str | None, quick: bool, as_json: bool) -> None:
    """Compare call costs with the raw driver and cuda.core.

    Takes a few seconds, in a separate process. Each library creates and closes 50 contexts (--quick: 5). They use about
    200 MiB of device memory (--quick: 20 MiB) until that process ends.
    """
    with ExitStack() as closing:
        chosen = None
        if profile is not None:
            chosen = f"sim:{closing.enter_context(simulated(profile, version)).spec}"
        # What is missing is reported here in one line; the measuring process would need many.
        open_driver()
        device = device_of(number)
        device.resources.sm  # noqa: B018
        effort = replace(QUICK if quick else Effort(), device=device.device_id)
        try:
            result = measure_in_fresh_process(effort, chosen)
        except CalledProcessError as error:
            raise Failure(
                f"the measuring process ended with status {error.returncode}: its messages are above"
            ) from None
        if as_json:
            write_json("bench", {**on_what(device), "report": result})
        else:
            _show(result)
