"""The tables and pictures of measured results, as the terminal and the documentation show them.

    python benchmarks/tables.py            writes the tables into the pages, and the pictures
    python benchmarks/tables.py --check    fails where a page or a picture differs from the results

Every number in them comes from a JSON file of benchmarks/results, through this file. On a page, a table stands between
two markers, of which the first names it, and so does a number that a sentence quotes (benchmarks/quoted.py).
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from math import log10
from pathlib import Path
from typing import Any

import answers
import collective_targets
import quoted
from curves import Panel, picture
from durations import duration, spread

from cuda_gctx.draw.svg import Drawing, Entry, legend
from cuda_gctx.measure.results import file_name, folder_of_results, write_result
from cuda_gctx.measure.statistics import median
from cuda_gctx.tune import Report, TailLatency

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results"
DOCS = REPOSITORY / "docs"
# What a card was asked, which the software driver is tested against.
RECORDINGS = REPOSITORY / "tests" / "hardware"
RECORDED = "h200-driver-13.0"
# What the simulated demo shows of a card: a module, because results are no part of the package.
ON_A_CARD = REPOSITORY / "cuda_gctx" / "cli" / "_on_a_card.py"
BEGIN = "<!-- table {}: written by benchmarks/tables.py -->"
END = "<!-- end of table -->"
MARKED = re.compile(rf"({BEGIN.format('([a-z ]+)')}\n).*?({END})", re.DOTALL)
FRONT_MATTER = re.compile(r"\A---\nmeasured: .*\n---\n")
NOTHING_MEASURED = "No card has been measured yet."
CONTESTANTS = {"raw": "raw, in C", "cuda_gctx": "cuda_gctx", "cuda.core": "cuda.core", "torch": "torch"}

Result = dict[str, Any]


def write(result: Result, kind: str, folder: Path | None) -> Path:
    """Writes the JSON file of a benchmark, into benchmarks/results if no folder is given."""
    return write_result(result, folder_of_results(folder, RESULTS) / file_name(result, kind))


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head, aligned so that it reads as plain text too."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def ratio(call: Result, other: str) -> str:
    return f"{call['ratios'][other]:.2f}" if other in call["ratios"] else ""


def target(call: Result) -> str:
    missed = [entry["what"] for entry in call["targets"] if not entry["met"]]
    return "missed: " + "; ".join(missed) if missed else "met" if call["targets"] else ""


def times_table(result: Result) -> str:
    """One row per call."""
    rows = [["call", *CONTESTANTS.values()]]
    for call in result["calls"]:
        cells = []
        for name in CONTESTANTS:
            contestant = call["contestants"].get(name, {})
            cells.append(
                spread(contestant["ns"]) if "ns" in contestant else "refused" if "refused" in contestant else ""
            )
        rows.append([call["title"], *cells])
    return markdown(rows)


def ratios_table(result: Result) -> str:
    """The ratios of each call, and whether its targets are met."""
    rows = [["call of cuda_gctx", "times of the raw call", "times of cuda.core's", "target"]]
    rows += [[call["title"], ratio(call, "raw"), ratio(call, "cuda.core"), target(call)] for call in result["calls"]]
    return markdown(rows)


def what_table(result: Result) -> str:
    rows = [["call", *CONTESTANTS.values()]]
    for call in result["calls"]:
        cells = [call["contestants"].get(name, {}).get("does", "") for name in CONTESTANTS]
        rows.append([call["title"], *(f"`{cell}`" if cell else "" for cell in cells)])
    return markdown(rows)


def import_table(result: Result) -> str:
    rows = [["statement", "time beyond a bare interpreter", "frameworks loaded", "target"]]
    for entry in result["imports"]:
        frameworks = ", ".join(entry["frameworks"]) or "none"
        rows.append([f"`{entry['does']}`", spread(entry["ns"]), frameworks, target(entry)])
    return markdown(rows)


def refusals(result: Result) -> str:
    """Who did not take part in what, and the reason in its own words; empty if all took part."""
    titles: dict[tuple[str, str], list[str]] = {}
    for call in result["calls"]:
        for name, contestant in call["contestants"].items():
            if "refused" in contestant:
                titles.setdefault((name, contestant["refused"]), []).append(call["title"])
    return "\n".join(f"- {name}, {'; '.join(where)}: {reason}" for (name, reason), where in titles.items())


def floors(result: Result) -> str:
    """What Python itself takes for a statement of the same shape, where that is a large part of the time."""
    return "\n".join(
        f"- {call['title']}: `{entry['does']}` takes {spread(entry['ns'])} here."
        for call in result["calls"]
        if (entry := call["contestants"].get("python"))
    )


def missed_section(result: Result) -> str:
    """The calls that miss a target, which, and what the driver and Python take without this package."""
    rows = [["call", "median", "driver and Python alone", "targets missed, and by how much"]]
    for call in result["calls"]:
        missed = [target for target in call["targets"] if not target["met"]]
        if missed:
            limits = "; ".join(f"{target['what']} (by {duration(target['over_ns'])})" for target in missed)
            medians = {name: entry["ns"]["median"] for name, entry in call["contestants"].items() if "ns" in entry}
            ours, python = medians["cuda_gctx"], medians.get("python")
            # What takes less than the driver and Python together makes no driver call.
            both = 0 if python is None else python + medians["raw"]
            alone = "" if python is None else duration(both if both < ours else python)
            rows.append([call["title"], duration(ours), alone, limits])
    met = sum(all(target["met"] for target in call["targets"]) for call in result["calls"])
    return f"{machine(result)} {met} of {len(result['calls'])} calls meet all of theirs.\n\n{markdown(rows)}"


# The goals of a switch, for the host, with work pending on the device.
SWITCH_GOALS_US = {"partitions": 5, "plans": 10}


def switches_section(result: Result) -> str:
    """Switches that have a goal: of pools of two partitions, and of plans of two parts."""
    rows = [["switch", "goal", "median", "p99", "in C: median, p99", "met"]]
    for row in result["switching"]:
        if row["partitions"] != 2 or row["work"] != "pending":
            continue
        plans = row["switch"].startswith("plans: ")
        goal, us = SWITCH_GOALS_US["plans" if plans else "partitions"], row["us"]
        verdict = "yes" if us["p99"] <= goal else "by the median" if us["median"] <= goal else "no"
        what = row["switch"] if plans else f"pool of two, {row['switch']}{', verified' * row['verified']}"
        raw = ", ".join(duration(row["raw_us"][key] * 1e3) for key in ("median", "p99")) if "raw_us" in row else ""
        rows.append([what, f"{goal} us", duration(us["median"] * 1e3), duration(us["p99"] * 1e3), raw, verdict])
    return f"{machine(result)}\n\n{markdown(rows)}"


def machine(result: Result) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["packages"].items())
    driver = "the software driver" if result["simulated"] else f"driver {result['driver'] or 'of unknown version'}"
    return (
        f"{result['card']}, {result['sm_count']} SMs, {driver} (CUDA {result['cuda']}), {result['cpu']}, "
        f"Python {result['python']}, {versions}; {result['date']}."
    )


def report(result: Result) -> str:
    parts = [machine(result), times_table(result)]
    # The software driver's own times say nothing of a GPU.
    if not result["simulated"]:
        parts.append(ratios_table(result))
    if refused := refusals(result):
        parts.append(f"Refused:\n\n{refused}")
    if floor := floors(result):
        parts.append(f"What Python itself takes:\n\n{floor}")
    return "\n\n".join([*parts, import_table(result)])


def calls_section(result: Result) -> str:
    title = f"## {result['card']}, CUDA {result['cuda']}"
    return "\n\n".join([title, report(result), "What was called:", what_table(result)])


def in_ns(times: dict[str, float], unit: float) -> dict[str, float]:
    return {key: times[key] * unit for key in ("median", "p10", "p90")}


def mebibytes_less(count: float) -> str:
    return "unchanged" if count == 0 else f"{count / 2**20:g} MiB less"


def makers_table(result: Result) -> str:
    """Making contexts and what it loses, per package: a package that could not take part says why."""
    rows = [["one context, made and closed by", "create", "close", "free device memory after it"]]
    for name, maker in result["create_and_close"].items():
        if isinstance(maker, str):
            rows.append([name, maker, "", ""])
        else:
            times = [spread(in_ns(maker[key], 1e3)) for key in ("create_us", "close_us")]
            rows.append([name, *times, mebibytes_less(maker["lost_bytes_per_pair"])])
    return markdown(rows)


def switching_rows(result: Result, shown: Callable[[dict[str, float]], str]) -> list[list[str]]:
    """What a switch costs the host, with work pending on the device."""
    if "switching" not in result:
        return [["`pool.switch` and `plan.switch`", "not yet measured on a card", ""]]
    return [
        [
            f"`pool.switch` of {row['partitions']} partitions, {row['switch']}{' (verified)' * row['verified']}"
            if not row["switch"].startswith("plans: ")
            else f"`plan.switch`, {row['switch'].removeprefix('plans: ')}",
            shown(in_ns(row["us"], 1e3)),
            "",
        ]
        for row in result["switching"]
        if row["work"] == "pending"
    ]


def waits_rows(result: Result, shown: Callable[[dict[str, float]], str]) -> list[list[str]]:
    """What an event of a whole context costs the host, with work pending on the device."""
    return [
        [
            f"{what} an event of a whole context, {row['streams']} stream{'s' * (row['streams'] > 1)} in it",
            shown(in_ns(row[key], 1)),
            "",
        ]
        for row in result.get("waits", ())
        if row["work"] == "pending"
        for what, key in (("record", "record_ns"), ("wait for", "wait_ns"))
    ]


def partitions_table(result: Result, shown: Callable[[dict[str, float]], str]) -> str:
    """What is done with partitions, the times of each as `shown` makes them of nanoseconds."""
    creation, preparing, openings = result["creation"], result["preparing"], result["openings"]
    rows = [
        [
            f"open partitions, the first of the process ({creation['contexts']} contexts), and close them",
            duration(creation["first_us"] * 1e3),
            "",
        ],
        ["the same again: the contexts come from the store", shown(in_ns(creation["again_us"], 1e3)), ""],
        [
            f"open partitions, make a stream, close them: {openings['openings']:,} times",
            shown(in_ns(openings["us"], 1e3)),
            mebibytes_less(openings["memory_change_bytes"]),
        ],
        ["`pool.prepare` of a new layout", shown(in_ns(preparing["built_us"], 1e3)), ""],
        [
            f"`pool.prepare` of one of {preparing['layouts']} known layouts: {preparing['look_ups']:,} times",
            shown(in_ns(preparing["prepare_ns"], 1)),
            mebibytes_less(preparing["memory_change_bytes"]),
        ],
        *switching_rows(result, shown),
        *waits_rows(result, shown),
        ["`verify()` of all partitions", shown(in_ns(result["isolation"]["verify_ms"], 1e6)), ""],
    ]
    return markdown([["what", "time", "free device memory after it"], *rows])


def proof(result: Result) -> str:
    """What the random layouts of the benchmark showed: it ends with an error where one was not isolated."""
    isolation = result["isolation"]
    refused = f" {isolation['refused']} more that were drawn did not fit." if isolation["refused"] else ""
    return (
        f"{isolation['layouts']} random layouts ({isolation['contexts']} contexts) were verified by SM id: each "
        f"context ran on its own SMs alone, and in {isolation['concurrent']} layouts all contexts ran at the same time."
        f"{refused}"
    )


def contexts_section(result: Result) -> str:
    title = f"## {result['card']}, CUDA {result['cuda']}: partitions"
    return "\n\n".join([title, machine(result), makers_table(result), partitions_table(result, spread)])


def costs_section(result: Result) -> str:
    ours = result["create_and_close"]["cuda_gctx"]
    create, close = (duration(ours[key]["median"] * 1e3) for key in ("create_us", "close_us"))
    alone = f"A context by itself takes {create} to create and {close} to close."
    return "\n\n".join(
        [machine(result), partitions_table(result, lambda ns: duration(ns["median"])), alone, proof(result)]
    )


def arrivals_section(result: Result) -> str:
    rows = [["short kernel on", "GEMMs on", "requests/s", "p50, us", "p99 (p99.9), us", "GEMMs/s"]]
    for row in result["rows"]:
        # One unit for all, because the rows are there to be compared.
        p50, p99, p999 = (f"{us:.{0 if us >= 99.95 else 1}f}" for us in map(row["us"].get, ("p50", "p99", "p99.9")))
        gemms = "" if row["gemms_per_second"] is None else f"{row['gemms_per_second']:.0f}"
        rows.append([row["short_kernel_on"], row["load_on"], str(row["per_second"]), p50, f"{p99} ({p999})", gemms])
    return f"{machine(result)}\n\n{markdown(rows)}"


def in_us(us: dict[str, float]) -> str:
    low, high = us["min"], us["max"]
    return (
        f"{us['median']:.0f} ({low:.0f} to {high:.0f})"
        if low >= 99.5
        else f"{us['median']:.1f} ({low:.1f} to {high:.1f})"
    )


def gemms_section(result: Result) -> str:
    """What an SM count hint does to single GEMMs; on the whole device there is no hint to set."""
    if not result.get("gemms"):
        return ""
    rows = [["SMs", "GEMM", "without hint, us", "with hint, us", "ratio"]]
    for row in result["gemms"]:
        off, on = row["us"]["off"], row["us"]["on"]
        hinted = row["sm_count"] < result["sm_count"]
        change = f"{on['median'] / off['median']:.2f}" if hinted else ""
        rows.append([str(row["sm_count"]), row["gemm"], in_us(off), in_us(on) if hinted else "", change])
    return f"{machine(result)} Medians, and the smallest and largest of {off['samples']}.\n\n{markdown(rows)}"


def report_of(study: Result) -> Report:
    return quoted.reports_of(study)[0]


def studies_section(result: Result) -> str:
    """The tuner's own reports: that of the first process, and what the others found."""
    parts = [machine(result)]
    for study in result["studies"]:
        first, *others = quoted.reports_of(study)
        parts.append(f"### {study['title']}")
        parts.append(f"```text\n{first}\n```")
        parts += [
            f"Another process, compared with the first:\n\n```text\n{first.compare(other)}\n```" for other in others
        ]
    return "\n\n".join(parts)


def answers_section(results: Sequence[Result]) -> str:
    """What the tuner answered, on each card and in each process."""
    rows = [["work", "card", "one process", "another process"]]
    for result in results:
        for study in result["studies"]:
            reports = quoted.reports_of(study)
            work = f"{' and '.join(reports[0].alone)}: {measure_of(reports[0])}"
            rows.append([work, result["card"], *(answer(report) for report in reports)])
    versions = "; ".join(f"{r['card']}: driver {r['driver']} (CUDA {r['cuda']}), {r['date']}" for r in results)
    return f"{versions}.\n\n{markdown(rows)}"


def measure_of(report: Report) -> str:
    """What a study compares plans by."""
    objective = report.objective
    if isinstance(objective, TailLatency):
        return f"p{objective.quantile * 100:g} of {objective.part}"
    return "step" if objective == "makespan" else "mix"


def answer(report: Report) -> str:
    if report.choice.kind == "sequence":
        return f"{report.choice}"
    return f"{report.choice}: {report.gain:.2f}x ({report.gain_low:.2f} to {report.gain_high:.2f})"


def mixes_section(result: Result) -> str:
    """Mixes on plain streams: by the tuner, and by a program with two threads."""
    if not result.get("mixes"):
        return ""
    rows = [["mix", "process", "enqueued by the tuner", "by the tuner, us", "by two threads, us", "ratio"]]
    for row in result["mixes"]:
        times = [row[side] for side in ("tuner_us", "threads_us")]
        cells = [f"{us['median']:.0f} ({us['p10']:.0f} to {us['p90']:.0f})" for us in times]
        rows.append(
            [row["mix"], str(row["process"]), row["launch"], *cells, f"{times[0]['median'] / times[1]['median']:.2f}"]
        )
    return f"{machine(result)} Medians, p10 and p90.\n\n{markdown(rows)}"


def launches_section(result: Result) -> str:
    """What small launches take, by how they are enqueued, in each process; and what they cost the host's threads."""
    runs: dict[str, list[list[Result]]] = {}
    for number, process in enumerate(result["processes"]):
        for row in process:
            of_processes = runs.setdefault(row["how"], [[] for _ in result["processes"]])
            of_processes[number].append(row)
    processes = (f"process {n}, us" for n in range(1, len(result["processes"]) + 1))
    rows = [["enqueued by", *processes, "waits for a launch; CPU us"]]
    for how, of_processes in sorted(runs.items()):
        cells = []
        for process in of_processes:
            us = sorted(row["us_per_mix"] for row in process)
            cells.append(f"{median(us):.0f} ({us[0]:.0f} to {us[-1]:.0f})" if us else "")
        threads = [thread for process in of_processes for row in process for thread in row["threads"]]
        costs = []
        for field, digits in (("waits_per_launch", 2), ("cpu_us_per_launch", 1)):
            if each := sorted(thread[field] for thread in threads):
                costs.append(f"{median(each):.{digits}f} ({each[0]:.{digits}f} to {each[-1]:.{digits}f})")
        rows.append([how, *cells, "; ".join(costs)])
    return f"{machine(result)} Medians, and the smallest and largest of all runs.\n\n{markdown(rows)}"


def worlds_section(result: Result) -> str:
    """How often the tuner is wrong where the truth is known."""
    rows = [["true times", "noise", "sure (wrong)", "won (without a gain)", "regret", "covered (margin)"]]
    for row in result["rows"]:
        rows.append(
            [
                row["truth"].replace("_", " "),
                row["noise"],
                f"{row['sure']:.1%} ({row['sure_but_wrong']:.1%})",
                f"{row['won']:.1%} ({row['false_wins']:.1%})",
                f"{row['median_regret']:.1%} to {row['largest_regret']:.1%}",
                f"{row['covered']:.1%} ({row['median_margin']:.1%})",
            ]
        )
    return f"{result['rows'][0]['runs']} runs of each world, seed {result['seed']}.\n\n{markdown(rows)}"


def pairs_section(result: Result) -> str:
    """What the tuner reported for each pair, in each process, and what another loop measured."""

    def ratio(value: Sequence[float]) -> str:
        middle, low, high = value
        return f"{middle:.3f} ({low:.3f} to {high:.3f})"

    rows = [["pair", "choice", "reported", "measured", "plain streams"]]
    for row in sorted(result["rows"], key=lambda row: (row["pair"], row["process"])):
        ratios = (ratio(row[field]) for field in ("told", "found", "found_of_streams"))
        rows.append([row["pair"].replace("-", " and "), row["choice"], *ratios])
    return (
        f"{machine(result)} Speedups over the sequence, with their intervals. {result['agree']} of {result['of']} "
        f"agree, and {result['lose']} choices are slower than the sequence by more than 1%.\n\n{markdown(rows)}"
    )


def allreduce_section(result: Result) -> str:
    """Plans by size of the message: the time of a joined step, and what it is of the one in sequence."""
    us = {(row["plan"], row["mebibytes"]): row["us"] for row in result["rows"]}
    gemm = us["GEMM alone", None]
    sizes = list(dict.fromkeys(size for _, size in us if size is not None))
    plans = list(dict.fromkeys(plan for plan, size in us if size is not None))
    rows = [["plan", *(f"{size} MiB, us" for size in sizes)]]
    rows += [[plan, *(in_us(us[plan, size]) for size in sizes)] for plan in plans]
    head = (
        f"{machine(result).removesuffix('.')}; two cards joined by NVLink, NCCL {result['nccl']}, without multicast. "
        f"Medians, and the smallest and largest of {gemm['samples']} batches of {result['steps_per_sample']} steps, of "
        f"the slower card. The GEMM alone takes {in_us(gemm)} us."
    )
    return f"{head}\n\n{markdown(rows)}"


def moved_graphs_section(result: Result) -> str:
    """What moving a graph costs by its kernels, and decode steps that are captured again or moved."""
    kernels = [
        [
            "kernels",
            "moved and made executable, ms",
            "of that moved, ms",
            "made executable, moved / not moved",
            "captured there / not moved",
        ]
    ]
    for row in result["kernels"]:
        times = [f"{row[key]:.3f}" for key in ("in_partition_ms", "move_ms")]
        there = row["instantiate_captured_there_ms"] / row["instantiate_ms"]
        kernels.append([str(row["kernels"]), *times, f"{row['instantiate_ratio']:.2f}", f"{there:.2f}"])
    steps = [["SMs", "captured again, ms", "moved, ms", "captured again, MiB", "moved, MiB", "step, ms"]]
    outcome = {row["sms"]: row for row in result["results"]}
    for sms in outcome:
        rows = [row for row in result["decode"] if row["sms"] == sms]
        cells = [
            f"{median([row[key] for row in rows if row['how'] == how]):.{digits}f}"
            for key, digits in (("ms", 1), ("mib", 1))
            for how in ("again", "moved")
        ]
        steps.append([str(sms), *cells, f"{outcome[sms]['step_ms']:.2f}"])
    batches = len({row["batch"] for row in result["decode"]})
    head = (
        f"Decode steps of {result['layers']} layers of an 8B model: medians over {batches} batch sizes, each. "
        f"The last column is of a batch of {result['results'][0]['batch']} next to a prefill in the other SMs."
    )
    us = result["switching"]
    switching = (
        "A launch of the smallest step takes the host, with the order that is kept and without it, in microseconds: "
        + "; ".join(
            f"{where} {us[f'ordered, {key}: us']:.1f} and {us[f'not ordered, {key}: us']:.1f}"
            for where, key in (("in one partition", "one"), ("in two in turn", "two"))
        )
        + "."
    )
    return "\n\n".join([machine(result), markdown(kernels), head, markdown(steps), switching])


def each(section: Callable[[Result], str]) -> Callable[[Sequence[Result]], str]:
    """The section of each result, one after the other."""
    return lambda results: "\n\n".join(filter(None, map(section, results)))


def nodes_section(result: Result) -> str:
    """Microseconds of an all-reduce of two nodes, by transport."""
    us = {(row["bytes"], row["variant"]): row["us"] for row in result.get("nodes", []) if row["op"] == "ALLREDUCE"}
    if not us:
        return ""
    sizes, variants = (sorted({key[part] for key in us}) for part in (0, 1))
    head = ["all-reduce, us", *variants]
    rows = [[collective_targets.words_of(size), *(f"{us[size, one]:.1f}" for one in variants)] for size in sizes]
    gpus, sms = 2 * result["nodes"][0]["ranks of a node"], result["nodes"][0]["SMs"]
    where = f"{gpus} x {result['card']}, partition of {sms} SMs, driver {result['driver']} (CUDA {result['cuda']})"
    where += f", {result['date']}"
    return f"{where}:\n\n{markdown([head, *rows])}"


# The columns of the table of copy engines; in each, what stands next to another, and of its variants the fastest.
COPIED = {
    "in place": [("COPY_ENGINES, 8 SMs, mapped, in place",)],
    "mapped": [("COPY_ENGINES, 8 SMs, mapped",)],
    "staged": [("COPY_ENGINES, 8 SMs, staged",)],
    "kernel": [("ONE_EXCHANGE, 8 SMs", "TWO_EXCHANGE, 8 SMs, mapped")],
    "NCCL, 8 SMs / all SMs": [("NCCL_ONE, 8 SMs",), ("NCCL, all SMs",)],
}
COPIED_SIZES = [1 << shift for shift in (17, 19, 21, 23, 26, 28)]


def copies_section(result: Result) -> str:
    """Microseconds of what copy engines compute, next to kernels of 8 SMs and NCCL."""
    us = {(row["op"], row["bytes"], row["variant"]): row["us"] for row in result["sweep"] if "us" in row}
    copied = {op for op, _, variant in us if variant.startswith("COPY_ENGINES")}
    ops = [op for op in ("BROADCAST", "ALLGATHER", "ALLTOALL") if op in copied]
    rows = [["us", *COPIED]] if ops else []
    for op, size in itertools.product(ops, COPIED_SIZES):
        cells = []
        for parts in COPIED.values():
            found = [[us[op, size, one] for one in variants if (op, size, one) in us] for variants in parts]
            cells.append(" / ".join(f"{min(times):.1f}" for times in found if times))
        rows.append([f"`{op}`, {collective_targets.words_of(size)}", *cells])
    return f"{communication_origin(result)}:\n\n{markdown(rows)}" if rows else ""


# The columns of the table of types, and their variants.
TYPED = {
    "`ONE_EXCHANGE`": ["ONE_EXCHANGE, 8 SMs"],
    "`TWO_EXCHANGE`, mapped": ["TWO_EXCHANGE, 8 SMs, mapped"],
    "staged": ["TWO_EXCHANGE, 8 SMs, staged"],
    "NCCL, 8 SMs": ["NCCL_ONE, 8 SMs"],
    "NCCL, all SMs (bfloat16)": ["NCCL, all SMs", "NCCL, all SMs, as bfloat16"],
}


def types_section(result: Result) -> str:
    """Microseconds of all-reduces of numbers that are not of 16 bits."""
    us = {(row["type"], row["bytes"], row["variant"]): row["us"] for row in result["types"] if "us" in row}
    rows = [["us", *TYPED]]
    for dtype, size in dict.fromkeys(key[:2] for key in us):
        cells = []
        for variants in TYPED.values():
            time, *more = [f"{us[key]:.1f}" for one in variants if (key := (dtype, size, one)) in us] or [""]
            cells.append(" ".join([time, *(f"({other})" for other in more)]))
        rows.append([f"{dtype}, {collective_targets.words_of(size)}", *cells])
    return f"{communication_origin(result)}:\n\n{markdown(rows)}"


# The programs of the table of compiled ones, and its columns.
COMPILED = {
    "ONE_EXCHANGE, 8 SMs": "`ONE_EXCHANGE`",
    "TWO_EXCHANGE, 8 SMs": "`TWO_EXCHANGE`, staged",
    "NCCL, all SMs": "NCCL",
}
COMPILED_TIMES = [(time, how) for time in ("GPU", "host") for how in ("eager", "compiled")]


def compiled_section(result: Result) -> str:
    """Microseconds of an all-reduce between two operations of torch, compiled by torch and not."""
    us = {(row["variant"], row["bytes"], row.get("time")): row["us"] for row in result["compiled"] if "us" in row}
    rows = [["us", *(f"{time}, {how}" for time, how in COMPILED_TIMES)]]
    for size, (variant, words) in itertools.product(dict.fromkeys(key[1] for key in us), COMPILED.items()):
        times = [us.get((f"{variant}, {how}", size, time)) for time, how in COMPILED_TIMES]
        cells = ["" if time is None else f"{time:.1f}" for time in times]
        rows.append([f"{words}, {collective_targets.words_of(size)}", *cells])
    return f"{communication_origin(result)}:\n\n{markdown(rows)}"


# The tables that a page can have: the results that they are made of, and what these become.
def answers_of(rows_of: Callable[[Result], list[list[str]]]) -> Callable[[Sequence[Result]], str]:
    """What each card answered to a question, if it was asked."""

    def section(result: Result) -> str:
        rows = rows_of(result)
        return f"{machine(result)}\n\n{markdown(rows)}" if rows else ""

    return each(section)


# The recorded contexts of the table of clusters, and what they are.
CLUSTERED = {
    "8 flags=0": "one group of 8",
    "groups 0,3,7 of 8": "three groups of 8 in one context",
    "16 flags=0": "the driver's group of 16",
    "32 flags=0": "the driver's group of 32",
    "64 flags=0": "the driver's group of 64",
    "64 flags=2": "64, flag for the largest clusters",
    "10 flags=1": "10 SMs, fine",
    "64 flags=1": "64 SMs, fine",
    "rest of all 8": "remainder of all groups of 8",
    "primary": "whole device",
}
# The recorded splits of groups, with the size of the groups that were asked for.
SPLIT_AGAIN = {
    "32 flags=0": ("a group of 32", 16),
    "64 flags=0": ("a group of 64", 32),
    "128 flags=0": ("a group of 128", 16),
    "rest of one 8": ("the rest of the device, after a group of 8", 8),
}


def clusters_section(recording: Result) -> str:
    """How many thread-block clusters of each size are active in a context, by its SMs."""
    rows = [["context", "SMs", "clusters of 2", "of 4", "of 8", "of 16"]]
    for name, words in CLUSTERED.items():
        limits = recording["limits"][name]
        active = limits["active clusters, 128 threads"]
        rows.append(
            [words, *(str(number) for number in (limits["sms"], *(active[size] for size in ("2", "4", "8", "16"))))]
        )
    return markdown(rows)


def second_splits_section(recording: Result) -> str:
    """What the driver returns for a split of what a context has, where that is less than was asked for."""
    rows = [["split of", "requested", "returned"]]
    for name, (words, wanted) in SPLIT_AGAIN.items():
        [(groups, sms, left)] = [
            found for size, found in recording["two_step"][name]["split flags=0"] if size == wanted
        ]
        rows.append([words, f"groups of {wanted}", f"{groups} groups of {sms}, {left} left"])
    return markdown(rows)


TABLES: dict[str, tuple[str, Callable[[Sequence[Result]], str]]] = {
    "of calls": ("calls", each(calls_section)),
    "of missed targets": ("calls", each(missed_section)),
    "of switches": ("partitions", each(switches_section)),
    "of contexts": ("partitions", each(contexts_section)),
    "of costs": ("partitions", each(costs_section)),
    "of background partitions": ("arrivals", each(arrivals_section)),
    "of single gemms": ("studies", each(gemms_section)),
    "of studies": ("studies", each(studies_section)),
    "of answers": ("studies", answers_section),
    "of mixes": ("studies", each(mixes_section)),
    "of two devices": ("allreduce", each(allreduce_section)),
    "of launches": ("launches", each(launches_section)),
    "of moved graphs": ("moved-graphs", each(moved_graphs_section)),
    "of worlds": ("worlds", each(worlds_section)),
    "of pairs": ("overlap-pairs", each(pairs_section)),
    "of nodes": ("communication-nodes", each(nodes_section)),
    "of nodes on four": ("communication-4-gpus", each(nodes_section)),
    **{name: ("questions", answers_of(rows)) for name, rows in answers.QUESTIONS.items()},
    **{name: ("processes", answers_of(rows)) for name, rows in answers.PROCESSES.items()},
    "of clusters": (RECORDED, each(clusters_section)),
    "of second splits": (RECORDED, each(second_splits_section)),
    "of copies": ("communication-copies", each(copies_section)),
    "of copies on four": ("communication-4-gpus", each(copies_section)),
    "of types": ("communication-types", each(types_section)),
    "of compiled calls": ("communication-compiled", each(compiled_section)),
    "of targets of collectives": ("communication-*-gpus", lambda all: markdown(collective_targets.rows_of(all))),
}


def results_of(kind: str) -> list[Result]:
    if kind == RECORDED:
        return [json.loads((RECORDINGS / f"{kind}.json").read_text())]
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"*-{kind}.json"))]
    simulated = [result["card"] for result in results if result.get("simulated")]
    if simulated:
        raise SystemExit(f"{RESULTS} holds simulated results ({', '.join(simulated)}): remove them")
    return results


def h200_studies() -> list[Result]:
    """The studies of the card of the pictures."""
    return next(list(result["studies"]) for result in results_of("studies") if result["card"] == "NVIDIA H200")


# The rows of the picture of latencies: where the short kernel and the GEMMs run, and how that is called there.
LATENCY_ROWS = {
    ("plain stream", "(none)"): ("kernel alone", "bar"),
    ("highest-priority stream", "plain stream"): ("kernel on the highest priority", "bar"),
    ("16-SM partition only", "plain stream"): ("kernel in a partition of 16 SMs", "bar"),
    ("16-SM partition", "background partition"): ("and GEMMs in the background partition", "best"),
}
LATENCY_AXIS_US = (5, 5000)


def latency_picture() -> str:
    """The p99 of a short kernel next to GEMMs, and what isolation costs, as an SVG picture."""
    [result] = results_of("arrivals")
    numbers = quoted.of_latency(result)
    rate = numbers["requests per second"]
    margin, left, plot, height = 20, 300, 350, 26
    width = left + plot + 170
    drawing = Drawing("p99 latency of a short kernel next to GEMMs")
    drawing.text(margin, 32, "p99 latency of a short kernel next to GEMMs", size=17, bold=True)
    origin = f"{result['card']}, driver {result['driver']} (CUDA {result['cuda']}), {result['date']}"
    drawing.text(margin, 51, f"{origin}; {rate} requests/s at random times, logarithmic", kind="faint")
    entries = [Entry(None, "", "p99", "", "bar"), Entry(None, "", "p50", "", "spread")]
    y = 66 + legend(drawing, margin, 66, entries, width - margin) + 24
    rows = [row for row in result["rows"] if str(row["per_second"]) == rate]
    us = {(row["short_kernel_on"], row["load_on"]): row["us"] for row in rows}

    def x(time: float) -> float:
        low, high = (log10(limit) for limit in LATENCY_AXIS_US)
        return left + plot * (log10(time) - low) / (high - low)

    bottom = y + height * len(LATENCY_ROWS)
    for tick, words in ((10, "10 us"), (100, "100 us"), (1000, "1 ms")):
        drawing.line(x(tick), y - 8, x(tick), bottom)
        drawing.text(x(tick), y - 14, words, size=11, kind="faint", anchor="middle")
    for key, (name, kind) in LATENCY_ROWS.items():
        times = us[key]
        drawing.text(left - 10, y + 13, name, bold=kind == "best", anchor="end")
        drawing.rectangle(left, y, x(times["p99"]) - left, 18, kind=kind, corner=2)
        drawing.rectangle(x(times["p50"]) - 2, y + 2, 4, 14, kind="spread")
        words = f"{duration(times['p99'] * 1e3)} (p50 {duration(times['p50'] * 1e3)})"
        drawing.text(x(times["p99"]) + 8, y + 13, words, bold=kind == "best")
        y += height
    cost = (
        f"What it costs: SMs. The GEMMs in the other {numbers['sms of the background']} SMs ran at "
        f"{numbers['gemms that the background keeps']} of their rate."
    )
    drawing.text(margin, bottom + 22, cost, kind="faint")
    return drawing.svg(width, bottom + 38)


def study_picture() -> str:
    """The first study, as the tuner draws it."""
    return report_of(h200_studies()[0]).svg()


# The curves of the pictures of communication: names there, and variants of the benchmark, of which the fastest counts.
COMMUNICATION = {
    "NCCL on all SMs": ("NCCL, all SMs", "two NCCL calls, all SMs"),
    "NCCL in 8 SMs": ("NCCL_ONE, 8 SMs", "NCCL_TP_DP, 8 SMs"),
    "cuda_gctx in 8 SMs, mapped tensors": ("ONE_EXCHANGE, 8 SMs", "TWO_EXCHANGE, 8 SMs, mapped"),
    "cuda_gctx in 8 SMs, other tensors": ("ONE_EXCHANGE, 8 SMs", "TWO_EXCHANGE, 8 SMs, staged"),
}
LABELLED_SIZES = {1 << 10: "1 KiB", 1 << 15: "32 KiB", 1 << 19: "512 KiB", 1 << 23: "8 MiB", 1 << 28: "256 MiB"}


def communication_origin(result: Result) -> str:
    gpus = result["_what"].split(",")[0].removeprefix("Collectives on ")
    return f"{gpus}, {result['card']}, driver {result['driver']} (CUDA {result['cuda']}), {result['date']}"


def communication_picture(kind: str) -> str:
    """Latency and bandwidth of each operation over the size of the message, on the newer card that was measured."""
    result = results_of(kind)[-1]  # in the order of the names: H100, H200
    rows = [row for row in result["sweep"] if "us" in row]
    panels = []
    of_kernels = [row for row in rows if row["variant"].startswith("TWO_EXCHANGE")]
    for topology, op in dict.fromkeys((row["topology"], row["op"]) for row in of_kernels):
        us: dict[str, dict[int, float]] = {name: {} for name in COMMUNICATION}
        for row in rows:
            for name, variants in COMMUNICATION.items():
                if (row["topology"], row["op"]) == (topology, op) and row["variant"] in variants:
                    us[name][row["bytes"]] = min(row["us"], us[name].get(row["bytes"], row["us"]))
        latency = {name: sorted(times.items()) for name, times in us.items()}
        bandwidth = {name: [(size, size / 1e3 / time) for size, time in times] for name, times in latency.items()}
        sizes = sorted({size for times in us.values() for size in times})
        ticks = [(size, LABELLED_SIZES.get(size, "")) for size in sizes]
        title = f"{op.lower().replace('_', ' + ')}, {topology}"
        panels.append([Panel(title, latency, "us", ticks), Panel("bandwidth", bandwidth, "GB/s", ticks, False)])
    title = "Collectives over the size of the message (the larger of input and output)"
    return picture(title, communication_origin(result), panels)


def overlap_picture() -> str:
    """Time of a step of GEMM and all-reduce over the size of the partition for the all-reduce."""
    results = {
        result["_what"]: result
        for kind in ("2-gpus", "4-gpus")
        for result in results_of(f"communication-{kind}")
        if "overlap" in result
    }
    panels = []
    for result in results.values():
        us = {row["plan"]: row["us"] for row in result["overlap"]}
        steps = re.compile(r"(\d+) \+ \d+ SMs, (\w+), SM count hint \d+")
        found = {match: time for plan, time in us.items() if (match := steps.fullmatch(plan))}
        names = {"TWO_EXCHANGE": "cuda_gctx, mapped tensors", "NCCL_ONE": "NCCL in the partition"}
        curves: dict[str, list[tuple[float, float]]] = {
            words: sorted((int(match[1]), time) for match, time in found.items() if match[2] == mode)
            for mode, words in names.items()
        }
        sizes = sorted({x for curve in curves.values() for x, _ in curve})
        curves["GEMM, then NCCL on all SMs"] = [(x, us["in sequence, NCCL"]) for x in sizes]
        curves["GEMM alone"] = [(x, us["GEMM alone"]) for x in sizes]
        ticks = [(size, f"{size:g} SMs") for size in sizes]
        gpus = result["_what"].split(",")[0].removeprefix("Collectives on ")
        title = f"{gpus} ({result['card']}, {result['date']}): step over the size of the partition"
        panels.append(Panel(title, curves, "us", ticks, False, 1500.0))
    origin = "8192 x 8192 x 8192 bfloat16, 256 MiB, joined after each step, sustained"
    return picture("A GEMM and an all-reduce at the same time", origin, [panels], height=200)


PICTURES: dict[str, Callable[[], str]] = {
    "communication-2-gpus.svg": lambda: communication_picture("communication-2-gpus"),
    "communication-4-gpus.svg": lambda: communication_picture("communication-4-gpus"),
    "latency.svg": latency_picture,
    "overlap.svg": overlap_picture,
    "study.svg": study_picture,
}


def table(name: str) -> str:
    kind, section = TABLES[name]
    results = results_of(kind)
    return (section(results) if results else "") or NOTHING_MEASURED


def with_origin(page: str, origins: dict[str, str]) -> str:
    """A page of the documentation whose front matter says where the numbers were measured that it quotes."""
    names = dict.fromkeys(marked[2] for marked in quoted.MARKED.finditer(page))
    where = dict.fromkeys(origins[name] for name in names)
    front = f"---\nmeasured: {'; '.join(where)}\n---\n" if where else ""
    return front + FRONT_MATTER.sub("", page)


def page_with_results(page: str, numbers: dict[str, str], origins: dict[str, str] | None = None) -> str:
    """A page with the tables and quoted numbers that the results have now, and front matter where origins are given."""
    page = page if origins is None else with_origin(page, origins)
    page = MARKED.sub(lambda marked: f"{marked[1]}\n{table(marked[2])}\n\n{marked[3]}", page)
    return quoted.MARKED.sub(lambda marked: f"{marked[1]}{numbers[marked[2]]}{marked[4]}", page)


def module_on_a_card(numbers: dict[str, str]) -> str:
    """The numbers of README's figure, for `cuda-gctx demo`."""
    rows = {
        "WHERE": "latency origin",
        "REQUESTS_PER_SECOND": "requests per second",
        "ALONE": "latency alone",
        "ISOLATED": "latency in a partition",
        "PRIORITY": "latency of a priority stream",
    }
    lines = ['"""p99 latencies of a short kernel next to GEMMs; written by benchmarks/tables.py."""', ""]
    return "\n".join([*lines, *(f'{name} = "{numbers[number]}"' for name, number in rows.items()), ""])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write the tables and pictures of the documentation from benchmarks/results."
    )
    parser.add_argument("--check", action="store_true", help="change nothing, and fail where a page differs")
    arguments = parser.parse_args(words)
    pages = {path: path.read_text() for path in [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]}
    pictures = {DOCS / "images" / name: draw() for name, draw in PICTURES.items()}
    found = [marked[2] for page in pages.values() for marked in MARKED.finditer(page)]
    if sorted(found) != sorted(TABLES):
        raise SystemExit(
            f"README.md and {DOCS} should have each of these tables once: {', '.join(TABLES)}; found {', '.join(found)}"
        )
    numbers = quoted.quoted(results_of)
    unknown = {marked[2] for page in pages.values() for marked in quoted.MARKED.finditer(page)} - set(numbers)
    if unknown:
        raise SystemExit(f"no such number: {', '.join(sorted(unknown))}; benchmarks/quoted.py has {', '.join(numbers)}")
    origins = quoted.origins(results_of)
    due = {
        path: page_with_results(page, numbers, None if path.name == "README.md" else origins)
        for path, page in pages.items()
    }
    programs = pictures | {ON_A_CARD: module_on_a_card(numbers)}
    due |= programs
    pages |= {path: path.read_text() if path.exists() else "" for path in programs}
    differing = [path for path in due if pages[path] != due[path]]
    if not arguments.check:
        for path in differing:
            path.write_text(due[path])
    elif differing:
        names = ", ".join(map(str, differing))
        print(f"{names}: not as in benchmarks/results; run python benchmarks/tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
