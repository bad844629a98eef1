"""Renders the tables of docs/performance.md, and the picture of latencies, from benchmarks/results.

    python benchmarks/render.py

On the page, a table stands between "<!-- results: NAME -->" and "<!-- end of results -->". The prose around the tables
is written by hand. The newest result of each card and subject is in benchmarks/results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from durations import duration, spread
from reporting import REPOSITORY, RESULTS, Result, machine, markdown

from cuda_gctx.draw.svg import Drawing, lines_of

PAGE = REPOSITORY / "docs" / "performance.md"
IMAGES = REPOSITORY / "docs" / "images"
SECTION = re.compile(r"(<!-- results: ([a-z ]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
CONTESTANTS = {"raw": "raw, in C", "cuda_gctx": "cuda_gctx", "cuda.core": "cuda.core", "torch": "torch"}
# Goals of a switch, for the host, with work pending on the device.
SWITCH_GOALS_US = {"partitions": 5, "plans": 10}


def calls(result: Result) -> str:
    """Renders the time of each call by contestant, what was refused, and the time of an import."""
    rows, refused = [["call", *CONTESTANTS.values()]], []
    for call in result["calls"]:
        contestants = [call["contestants"].get(name, {}) for name in CONTESTANTS]
        cells = [spread(one["ns"]) if "ns" in one else "refused" if "refused" in one else "" for one in contestants]
        rows.append([call["title"], *cells])
        for name, one in zip(CONTESTANTS, contestants, strict=True):
            if "refused" in one:
                refused.append(f'- {name} refuses "{call["title"]}": {one["refused"]}')
    imports = [["statement", "time beyond a bare interpreter"]]
    imports += [[f"`{one['does']}`", spread(one["ns"])] for one in result["imports"]]
    parts = [machine(result), markdown(rows), "\n".join(refused), markdown(imports)]
    return "\n\n".join(filter(None, parts))


def missed_targets(result: Result) -> str:
    """Renders the calls that miss a target, with the time of the driver and of Python alone."""
    rows = [["call", "median", "driver and Python alone", "targets missed, and by how much"]]
    for call in result["calls"]:
        missed = [target for target in call["targets"] if not target["met"]]
        if not missed:
            continue
        limits = "; ".join(f"{target['what']} (by {duration(target['over_ns'])})" for target in missed)
        medians = {name: one["ns"]["median"] for name, one in call["contestants"].items() if "ns" in one}
        ours, python = medians["cuda_gctx"], medians.get("python")
        both = 0 if python is None else python + medians["raw"]
        # A call that takes less than the driver and Python together makes no driver call.
        alone = "" if python is None else duration(both if both < ours else python)
        rows.append([call["title"], duration(ours), alone, limits])
    met = sum(all(target["met"] for target in call["targets"]) for call in result["calls"])
    return f"{machine(result)} {met} of {len(result['calls'])} calls meet all of theirs.\n\n{markdown(rows)}"


def switches(result: Result) -> str:
    """Renders the switches that have a goal: pools of two partitions, and plans of two parts."""
    rows = [["switch", "goal", "median", "p99", "in C: median, p99", "met"]]
    for row in result["switching"]:
        if row["partitions"] != 2 or row["work"] != "pending":
            continue
        plans = row["switch"].startswith("plans: ")
        goal, us = SWITCH_GOALS_US["plans" if plans else "partitions"], row["us"]
        verdict = "yes" if us["p99"] <= goal else "by the median" if us["median"] <= goal else "no"
        title = row["switch"] if plans else f"pool of two, {row['switch']}{', verified' * row['verified']}"
        raw = ", ".join(duration(row["raw_us"][key] * 1e3) for key in ("median", "p99")) if "raw_us" in row else ""
        rows.append([title, f"{goal} us", duration(us["median"] * 1e3), duration(us["p99"] * 1e3), raw, verdict])
    return f"{machine(result)}\n\n{markdown(rows)}"


def in_ns(times: Mapping[str, float], unit: float) -> dict[str, float]:
    return {key: times[key] * unit for key in ("median", "p10", "p90")}


def partitions(result: Result) -> str:
    """Renders the time of each operation on contexts, partitions and pools."""
    rows = [["operation", "time"]]
    for name, maker in result["create_and_close"].items():
        if not isinstance(maker, str):
            for verb in ("create", "close"):
                rows.append([f"{verb} one context, {name}", spread(in_ns(maker[f"{verb}_us"], 1e3))])
    first = f"open partitions, the first of the process ({result['creation']['contexts']} contexts), and close them"
    rows += [
        [first, duration(result["creation"]["first_us"] * 1e3)],
        ["open and close them again, with contexts that are idle", spread(in_ns(result["creation"]["again_us"], 1e3))],
        ["open partitions, create a stream, close them", spread(in_ns(result["openings"]["us"], 1e3))],
        ["`pool.prepare` of a new layout", spread(in_ns(result["preparing"]["built_us"], 1e3))],
        ["`pool.prepare` of a known layout", spread(in_ns(result["preparing"]["prepare_ns"], 1))],
    ]
    for row in result["switching"]:
        if row["work"] == "pending" and not row["switch"].startswith("plans: ") and row["partitions"] > 2:
            title = f"`pool.switch` of {row['partitions']} partitions{' (verified)' * row['verified']}"
            rows.append([title, spread(in_ns(row["us"], 1e3))])
    for row in result.get("waits", ()):
        if row["work"] == "pending":
            for verb, key in (("record", "record_ns"), ("wait for", "wait_ns")):
                title = f"{verb} an event of a whole context, {row['streams']} stream{'s' * (row['streams'] > 1)} in it"
                rows.append([title, spread(in_ns(row[key], 1))])
    rows.append(["`verify()` of all partitions", spread(in_ns(result["isolation"]["verify_ms"], 1e6))])
    return f"{machine(result)}\n\n{markdown(rows)}"


def latency(result: Result) -> str:
    rows = [["short kernel on", "GEMMs on", "requests/s", "p50, us", "p99 (p99.9), us", "GEMMs/s"]]
    for row in result["rows"]:
        p50, p99, p999 = (f"{us:.{0 if us >= 99.95 else 1}f}" for us in map(row["us"].get, ("p50", "p99", "p99.9")))
        gemms = "" if row["gemms_per_second"] is None else f"{row['gemms_per_second']:.0f}"
        rows.append([row["short_kernel_on"], row["load_on"], str(row["per_second"]), p50, f"{p99} ({p999})", gemms])
    return f"{machine(result)}\n\n{markdown(rows)}"


def named(plan: Mapping[str, Any]) -> str:
    """The name of a plan of a stored report, of any version."""
    if plan["layout"] is None:
        return {"sequence": "in sequence", "streams": "plain streams"}.get(plan["kind"], f"{plan['first']} first")
    sizes = {part: "all" if part == plan["first"] else plan["sm_counts"][part] for part in plan["parts"]}
    return ", ".join(f"{part}={sms}" for part, sms in sizes.items()) + ", SM count hint" * plan["library_sms"]


def answer(report: Mapping[str, Any]) -> str:
    shown = report["choice"] or report["best"]
    text = named(shown) if report["choice"] is not None else f"undecided, best: {named(shown)}"
    if shown["kind"] == "sequence":
        return text
    return f"{text}: {report['gain']:.2f}x ({report['gain_low']:.2f} to {report['gain_high']:.2f})"


def compared(objective: Any) -> str:
    if "tail_latency" in objective:
        return f"p{objective['quantile'] * 100:g} of {objective['tail_latency']}"
    return "step" if objective == "makespan" else "mix"


def tuner(result: Result) -> str:
    """Renders the choice of the tuner for each pair of work, in two processes."""
    rows = [["work", "one process", "another process"]]
    for study in result["studies"]:
        reports = study["reports"]
        title = f"{' and '.join(reports[0]['alone'])}: {compared(reports[0]['objective'])}"
        rows.append([title, *map(answer, reports)])
    return f"{machine(result)}\n\n{markdown(rows)}"


# Columns of the table of collectives, each with the variants of which the fastest counts.
COLLECTIVES = {
    "NCCL, all SMs": ("NCCL, all SMs", "two NCCL calls, all SMs"),
    "NCCL, 8 SMs": ("NCCL_ONE, 8 SMs", "NCCL_TP_DP, 8 SMs"),
    "8 SMs, mapped": ("ONE_EXCHANGE, 8 SMs", "TWO_EXCHANGE, 8 SMs, mapped"),
    "8 SMs, staged": ("ONE_EXCHANGE, 8 SMs", "TWO_EXCHANGE, 8 SMs, staged"),
}
SIZES = {1 << 13: "8 KiB", 1 << 19: "512 KiB", 1 << 23: "8 MiB", 1 << 28: "256 MiB"}


def collectives(result: Result) -> str:
    us = {
        (row["topology"], row["op"], row["bytes"], row["variant"]): row["us"] for row in result["sweep"] if "us" in row
    }
    ran = {key[:2] for key in us if key[3].startswith("TWO_EXCHANGE")}
    rows = [["us", *COLLECTIVES]]
    for topology, op in dict.fromkeys(key[:2] for key in us if key[:2] in ran):
        for size, words in SIZES.items():
            times = [
                [us[topology, op, size, one] for one in variants if (topology, op, size, one) in us]
                for variants in COLLECTIVES.values()
            ]
            cells = [f"{min(one):.1f}" if one else "" for one in times]
            rows.append([f"{op.lower().replace('_', ' + ')}, {topology}, {words}", *cells])
    gpus = result["_what"].split(",")[0].removeprefix("Collectives on ")
    return f"{gpus}: {machine(result)}\n\n{markdown(rows)}"


TABLES: dict[str, tuple[str, Callable[[Result], str]]] = {
    "missed targets": ("calls", missed_targets),
    "calls": ("calls", calls),
    "switches": ("partitions", switches),
    "partitions": ("partitions", partitions),
    "latency": ("arrivals", latency),
    "tuner": ("studies", tuner),
    "collectives": ("communication-*-gpus", collectives),
}


def results_of(subject: str) -> list[Result]:
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"*-{subject}.json"))]
    if any(result["simulated"] for result in results):
        raise SystemExit(f"{RESULTS} has a simulated {subject}: remove it")
    return results


def rendered(page: str) -> str:
    """Returns a page with new tables between the markers."""

    def table(match: re.Match[str]) -> str:
        subject, render = TABLES[match[2]]
        return f"{match[1]}\n" + "\n\n".join(map(render, results_of(subject))) + f"\n\n{match[3]}"

    return SECTION.sub(table, page)


# Rows of the picture of latencies: places of the short kernel and of the GEMMs, a label, and the kind of bar.
LATENCY_ROWS = {
    ("plain stream", "(none)"): ("alone", "bar"),
    ("highest-priority stream", "plain stream"): ("on the highest priority", "bar"),
    ("16-SM partition", "background partition"): ("in a partition", "best"),
}
PROGRAM_ROWS = {
    "alone": ("alone", "bar"),
    "turns, without MPS": ("in turns", "bar"),
    "MPS": ("under MPS", "bar"),
    "cuda-gctx share, 16 SMs and the rest": ("cuda-gctx share", "best"),
}


def bars(title: str, result: Result, rows: list[tuple[str, str, float]], note: str) -> str:
    """Draws p99 latencies as bars on one linear scale, in the width of a phone. rows: name, kind and microseconds."""
    margin, left, plot, height, width = 14, 172, 110, 30, 356
    drawing = Drawing(title)
    drawing.text(margin, 30, title, size=15, bold=True)
    drawing.text(margin, 50, f"{result['card']}, driver {result['driver']}, {result['date']}: p99", kind="faint")
    longest = max(us for *_, us in rows)
    for number, (name, kind, us) in enumerate(rows):
        y, is_best = 70 + number * height, kind == "best"
        drawing.text(left - 10, y + 14, name, bold=is_best, anchor="end")
        drawing.rectangle(left, y, max(plot * us / longest, 2), 20, kind=kind, corner=2)
        drawing.text(left + plot * us / longest + 8, y + 14, f"{us:,.0f} us", bold=is_best)
    bottom = 70 + len(rows) * height
    lines = lines_of(note, 12, width - 2 * margin)
    for number, line in enumerate(lines):
        drawing.text(margin, bottom + 18 + 16 * number, line, kind="faint")
    return drawing.svg(width, bottom + 18 + 16 * len(lines))


def latency_picture(result: Result) -> str:
    """Draws the p99 of a short kernel next to GEMMs in one process, at the lowest rate of requests."""
    rate = min(row["per_second"] for row in result["rows"])
    found = {(one["short_kernel_on"], one["load_on"]): one for one in result["rows"] if one["per_second"] == rate}
    rows = [(name, kind, found[key]["us"]["p99"]) for key, (name, kind) in LATENCY_ROWS.items()]
    _, priority, isolated = (found[key]["gemms_per_second"] for key in LATENCY_ROWS)
    note = f"The GEMMs on the other {result['sm_count'] - 16} SMs keep {isolated / priority:.0%} of their rate."
    return bars("A short kernel next to GEMMs", result, rows, note)


def programs_picture(result: Result) -> str:
    """Draws the p99 of a short kernel in one program, next to the GEMMs of another program."""
    found = {row["how"]: row for row in result["rows"] if row["pair"] == "kernel"}
    rows = [(name, kind, found[how]["latency"]["us"]["p99"]) for how, (name, kind) in PROGRAM_ROWS.items()]
    rates = [found[how]["load"]["per_second"] for how in PROGRAM_ROWS]
    note = f"The GEMMs on the other {result['sm_count'] - 16} SMs keep {rates[-1] / rates[0]:.0%} of their rate."
    return bars("Two unmodified programs", result, rows, note)


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
    (IMAGES / "latency.svg").write_text(latency_picture(results_of("arrivals")[-1]))
    (IMAGES / "programs.svg").write_text(programs_picture(results_of("whole-programs")[-1]))
