"""The numbers that sentences of README.md and of the pages quote, each made of the stored results.

In a page such a number stands as `<!-- =NAME -->30.6 us<!-- = -->`; benchmarks/tables.py writes and checks what is
between the two comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from durations import duration

from cuda_gctx.tune import Report

Result = dict[str, Any]
MARKED = re.compile(r"(<!-- =([a-z0-9 -]+) -->)(.*?)(<!-- = -->)", re.DOTALL)


def span(values: Iterable[float], digits: int = 2) -> str:
    """The smallest and the largest of some values, one if they read alike."""
    ordered = sorted(values)
    ends = dict.fromkeys(f"{end:.{digits}f}" for end in (ordered[0], ordered[-1]))
    return " to ".join(ends)


def microseconds(us: float) -> str:
    return f"{us:.{0 if us >= 99.95 else 1}f} us"


# Several pages and numbers are about one report.
report_from_json = cache(Report.from_json)


def reports_of(study: Result) -> list[Report]:
    """The reports of a study, one for each process that measured it."""
    return [report_from_json(json.dumps(report)) for report in study["reports"]]


def reports(results: Sequence[Result], study: str) -> list[Report]:
    """The reports of a study, of each card and process."""
    found = [one for result in results for one in result["studies"] if one["name"] == study]
    return [report for one in found for report in reports_of(one)]


def of_latency(arrivals: Result) -> dict[str, str]:
    """At the lowest rate of requests, which every placement sustains; next to alone at each rate."""
    rows = {(row["short_kernel_on"], row["load_on"], row["per_second"]): row for row in arrivals["rows"]}
    rates = {row["per_second"] for row in arrivals["rows"]}
    rate = min(rates)
    priority = rows["highest-priority stream", "plain stream", rate]
    only = rows["16-SM partition only", "plain stream", rate]
    alone, partition = (
        {one: rows[(*placement, one)] for one in rates}
        for placement in (("plain stream", "(none)"), ("16-SM partition", "background partition"))
    )
    return {
        "latency origin": f"{arrivals['card']}, driver {arrivals['driver']}, {arrivals['date']}",
        "requests per second": str(rate),
        "latency alone": microseconds(alone[rate]["us"]["p99"]),
        "latency of a priority stream": microseconds(priority["us"]["p99"]),
        "median of a priority stream": microseconds(priority["us"]["p50"]),
        "latency next to the primary context": microseconds(only["us"]["p99"]),
        "latency next to alone": span([partition[one]["us"]["p99"] / alone[one]["us"]["p99"] for one in rates]),
        "latency in a partition": microseconds(partition[rate]["us"]["p99"]),
        "median in a partition": microseconds(partition[rate]["us"]["p50"]),
        "gemms that the background keeps": f"{partition[rate]['gemms_per_second'] / priority['gemms_per_second']:.0%}",
        "sms of the card": str(arrivals["sm_count"]),
        "sms of the background": str(arrivals["sm_count"] - 16),
    }


def of_partitions(partitions: Result) -> dict[str, str]:
    [switch] = [
        row["us"]["median"]
        for row in partitions["switching"]
        if (row["switch"], row["partitions"], row["verified"], row["work"]) == ("other layout", 2, False, "pending")
    ]
    created = partitions["create_and_close"]["cuda_gctx"]["create_us"]["median"]
    return {
        "switch": duration(switch * 1e3),
        "look-up": duration(partitions["preparing"]["prepare_ns"]["median"]),
        "new context": duration(created * 1e3),
        "memory of a context": f"{partitions['create_and_close']['cuda_gctx']['lost_bytes_per_pair'] / 2**20:g} MiB",
    }


def origin_of_all(results: Sequence[Result]) -> str:
    """The cards, in short, the driver and the dates of some results."""
    dates = dict.fromkeys(f"{result['date']}" for result in results)
    cards = " and ".join(dict.fromkeys(result["card"].split()[1] for result in results))
    return f"{cards}, driver {results[0]['driver']}, {' and '.join(dates)}"


def of_studies(results: Sequence[Result]) -> dict[str, str]:
    mixes, steps = (reports(results, study) for study in ("large-small", "gemm-sigmoid"))
    return {
        "studies origin": origin_of_all(results),
        "gain of small next to large": span([report.gain for report in mixes]),
        "gain of a saturating gemm": f"{max(report.gain for report in steps):.2f}",
        "processes with that gain": str(sum(report.gain > 1 for report in steps)),
        "processes of the study": str(len(steps)),
    }


def of_collectives(allreduce: Result, overlaps: Sequence[Result]) -> dict[str, str]:
    us = {row["plan"]: row["us"]["median"] for row in allreduce["rows"] if row["mebibytes"] == 256}
    gains = [us["in sequence"] / us["16 + 116 SMs"]]
    for result in overlaps:
        steps = {row["plan"]: row["us"] for row in result["overlap"]}
        joined = [time for plan, time in steps.items() if re.fullmatch(r".*TWO_EXCHANGE, SM count hint \d+", plan)]
        gains.append(steps["in sequence, NCCL"] / min(joined))
    return {
        "collectives origin": origin_of_all([allreduce, *overlaps]),
        "gain of collectives": span(gains),
        "gain of an nccl all-reduce": f"{gains[0]:.2f}",
    }


def of_moved_graphs(instantiation: Result) -> dict[str, str]:
    """How long moved graphs take to be made executable: timed in turns with graphs that were not moved."""
    ms = {(row["kernels"], row["way"]): row["median_ms"] for row in instantiation["rows"] if row["time"] == "first"}
    way = "cuGraphNodeSetParams"
    return {
        f"moved to unmoved {kernels}": f"{ms[kernels, way] / ms[kernels, 'not moved']:.2f}" for kernels in (100, 1000)
    }


def of_guards(guards: Result) -> dict[str, str]:
    """What the running word of ONE_EXCHANGE costs, and packets of 64 bits."""
    us: dict[str, dict[tuple[int, int], float]] = {}
    for row in guards["rows"]:
        us.setdefault(row["kernels"], {})[row["ranks"], row["bytes"]] = row["us"]
    whole, without, halves = (us[name] for name in ("as it is", "no running word", "packets of 64 bits"))
    return {
        "guards origin": f"{guards['card']}, driver {guards['driver']}, {guards['date']}",
        "small messages with guards": f"{span(whole.values())} us",
        "cost of the running word": f"{span(whole[case] - without[case] for case in whole)} us",
        "halves to whole packets": span(halves[case] / whole[case] for case in whole),
    }


def of_eager(eager: Result) -> dict[str, str]:
    """The host's time of calls and of their launches alone, on each host that was measured."""
    us: dict[tuple[str, str], list[str]] = {}
    for row in eager["rows"]:
        us.setdefault((row["call"], row["part"]), []).append(f"{row['us']:.1f}")
    names = {
        "a raw launch": ("cuLaunchKernel", "raw"),
        "an addition": ("torch.add", "whole"),
        "one exchange": ("ONE_EXCHANGE", "whole"),
        "launches of one exchange": ("ONE_EXCHANGE", "launches"),
        "front of one exchange": ("ONE_EXCHANGE", "front"),
        "one exchange to a new output": ("ONE_EXCHANGE to a new output", "whole"),
        "no mode": ("no mode", "whole"),
        "two exchange": ("TWO_EXCHANGE, reached", "whole"),
        "launches of two exchange": ("TWO_EXCHANGE, reached", "launches"),
        "front of two exchange": ("TWO_EXCHANGE, reached", "front"),
        "staged": ("TWO_EXCHANGE, staged", "whole"),
        "launches of staged": ("TWO_EXCHANGE, staged", "launches"),
        "front of staged": ("TWO_EXCHANGE, staged", "front"),
        "staged by copies": ("TWO_EXCHANGE, staged by copy engines", "whole"),
        "launches of staged by copies": ("TWO_EXCHANGE, staged by copy engines", "launches"),
        "front of staged by copies": ("TWO_EXCHANGE, staged by copy engines", "front"),
    }
    return {f"eager {name}": ", ".join(us[key]) for name, key in names.items()} | {
        "eager origin": f"{eager['card']}, driver {eager['driver']}, {eager['date']}"
    }


def of_staged(staged: Result) -> dict[str, str]:
    """All-reduces whose tensors are staged, by a kernel and by copies of the driver."""
    us: dict[str, dict[int, float]] = {}
    for row in staged["rows"]:
        us.setdefault(row["copies"], {})[row["bytes"]] = row["us"]
    ways = {"by a kernel": us["by a kernel"], "by copies": us["by copy engines"]}
    small = {
        f"small staged {way}": f"{span((t for size, t in of.items() if size <= 1 << 20), 1)} us"
        for way, of in ways.items()
    }
    large = {f"large staged {way}": f"{of[1 << 21]:.1f} us" for way, of in ways.items()}
    return small | large | {"staged origin": f"{staged['card']}, driver {staged['driver']}, {staged['date']}"}


def of_staged_between_gpus(staged: Result) -> dict[str, str]:
    """The same between GPUs: the largest size that a kernel copies, and twice as much in few SMs."""
    found = {}
    for name, size, sms in (("largest", 1 << 20, (8, 16)), ("twice the largest", 1 << 21, (8,))):
        for words, way in (("a kernel", "by a kernel"), ("copies", "by copy engines")):
            rows = [row for row in staged["rows"] if (row["bytes"], row["copies"]) == (size, way) and row["SMs"] in sms]
            found[f"{name} between gpus by {words}"] = f"{span((row['us'] for row in rows), 1)} us"
    return found | {"between gpus origin": f"{staged['card']}, driver {staged['driver']}, {staged['date']}"}


def of_worlds(worlds: Result) -> dict[str, str]:
    """How often the tuner was wrong in worlds with known true times."""
    rows = worlds["rows"]
    drifting = [row["covered"] for row in rows if row["noise"] == "drift"]
    return {
        "worlds of the tuner": str(len(rows)),
        "runs of each world": str(min(row["runs"] for row in rows)),
        "runs of all worlds": f"{sum(row['runs'] for row in rows):,}",
        "sure and wrong": str(round(sum(row["sure_but_wrong"] * row["runs"] for row in rows))),
        "most sure and wrong": f"{max(row['sure_but_wrong'] for row in rows):.1%}",
        "won without a gain": str(round(sum(row["false_wins"] * row["runs"] for row in rows))),
        "least covered in drift": f"{min(drifting):.0%}",
        "least covered elsewhere": f"{min(row['covered'] for row in rows if row['noise'] != 'drift'):.0%}",
    }


def of_processes(processes: Result) -> dict[str, str]:
    """What percentages of MPS do to GEMMs, and to the kernels of a partition."""
    mps = processes["answers"]["mps"]
    wrong = {name: sum(sum(map(bool, row[-1])) for row in run["wrong"]) for name, run in mps["products"].items()}
    [limited] = (run["partition"] for name, run in mps.items() if name.startswith("a partition of 16 SMs at 50"))
    return {
        "gemms under mps": str(mps["products"]["75 % alone"]["products"]),
        "gemms wrong at 75": str(wrong["75 % alone"]),
        "gemms wrong at 88": str(wrong["88 % alone"]),
        "gemms wrong in partitions": str(sum(number for name, number in wrong.items() if "partition" in name)),
        "sms of a partition at 50": str(limited["SMs"]),
    }


COPIED = {"BROADCAST": "mapped, in place", "ALLGATHER": "mapped, in place", "ALLTOALL": "mapped"}


def of_copies(result: Result) -> dict[str, str]:
    """From which size on each operation by copy engines of mapped tensors takes no longer than NCCL on all SMs."""
    return {"copies keep up from": _kept_up_from(result, tuple(COPIED))}


def of_copies_on_four(result: Result) -> dict[str, str]:
    """The same on four GPUs but for broadcasts, and how long a large one of these takes."""
    us = _swept(result)
    largest = max(size for _, size, _ in us)
    copied, nccl = (us["BROADCAST", largest, one] for one in ("COPY_ENGINES, 8 SMs, mapped, in place", "NCCL, all SMs"))
    return {
        "copies on four keep up from": _kept_up_from(result, ("ALLGATHER", "ALLTOALL")),
        "broadcast on four": f"{copied:.0f} us",
        "broadcast on four by nccl": f"{nccl:.0f} us",
    }


def _swept(result: Result) -> dict[tuple[str, int, str], float]:
    return {(row["op"], row["bytes"], row["variant"]): row["us"] for row in result["sweep"]}


def _lost(us: dict[tuple[str, int, str], float], ops: Sequence[str]) -> dict[tuple[str, int], bool]:
    """Of each operation and size, whether NCCL on all SMs takes less time than copy engines do."""
    return {
        (op, size): time < us[op, size, f"COPY_ENGINES, 8 SMs, {COPIED[op]}"]
        for (op, size, variant), time in us.items()
        if op in ops and variant == "NCCL, all SMs"
    }


def _kept_up_from(result: Result, ops: Sequence[str]) -> str:
    lost = _lost(_swept(result), ops)
    last = max(size for (_, size), is_lost in lost.items() if is_lost)
    return f"{min(size for _, size in lost if size > last) >> 20} MiB"


def origin(results: Sequence[Result]) -> str:
    """Cards, driver and dates of results."""
    cards = " and ".join(dict.fromkeys(f"{result['card']}" for result in results))
    dates = " and ".join(dict.fromkeys(f"{result['date']}" for result in results))
    return f"{cards}, driver {results[0]['driver']}, {dates}"


def sources(results_of: Callable[[str], list[Result]]) -> list[tuple[dict[str, str], str]]:
    """The text of each number by its name, and where it was measured, for each kind of results."""
    overlaps = [r for kind in ("2-gpus", "4-gpus") for r in results_of(f"communication-{kind}") if "overlap" in r]
    [arrivals], [partitions], [allreduce], [instantiation] = map(
        results_of, ("arrivals", "partitions", "allreduce", "instantiation")
    )
    studies, [worlds], [guards], [eager] = map(results_of, ("studies", "worlds", "guards", "eager"))
    [staged], [copies] = map(results_of, ("communication-staged", "communication-copies"))
    four, [between] = results_of("communication-4-gpus")[-1], results_of("communication-staged-gpus")
    return [
        (of_latency(arrivals), origin([arrivals])),
        (of_partitions(partitions), origin([partitions])),
        (of_moved_graphs(instantiation), origin([instantiation])),
        (of_studies(studies), origin(studies)),
        *((of_processes(one), origin([one])) for one in results_of("processes")),
        (of_guards(guards), origin([guards])),
        (of_eager(eager), origin([eager])),
        (of_staged(staged), origin([staged])),
        (of_staged_between_gpus(between), origin([between])),
        (of_copies(copies), origin([copies])),
        (of_copies_on_four(four), origin([four])),
        (of_worlds(worlds), f"synthetic worlds, seed {worlds['seed']}"),
        (of_collectives(allreduce, overlaps), origin([allreduce, *overlaps])),
    ]


def quoted(results_of: Callable[[str], list[Result]]) -> dict[str, str]:
    """The text of each number by its name."""
    return {name: text for numbers, _ in sources(results_of) for name, text in numbers.items()}


def origins(results_of: Callable[[str], list[Result]]) -> dict[str, str]:
    """Where each number was measured."""
    return {name: where for numbers, where in sources(results_of) for name in numbers}
