"""The page of the study: tables and pictures of what was measured, with "not run" where nothing was."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

from cuda_gctx._core.text import table
from cuda_gctx.draw.svg import Drawing, Entry, colours_of, legend
from serving.entrants import ENTRANTS
from serving.loads import LOADS
from serving.search import GAPS_MS, SEEDS, Goodput, Outcome, Question, best_other, goodput
from serving.store import of_gpu, outcomes_of, revisions_before, settings_of, trial_of, trials_of

NOT_RUN = "not run"
Content = Mapping[str, Any]


def known(content: Content, outcomes: Sequence[Outcome], question: Question) -> Goodput | None:
    """What the trials say of a question; None if none was run."""
    mine = [one for one in outcomes if one.trial.question == question]
    if not mine:
        return None
    rates = [mine[0].trial.rate] * len(SEEDS)
    return goodput(outcomes, question, settings_of(content, outcomes, question), rates)


def in_words(found: Goodput | None) -> str:
    """A goodput in requests per second, and how far it has been confirmed."""
    if found is None or found.rate is None:
        return NOT_RUN
    if found.settled and not found.rate:
        return "0: no rate that was tried is kept"
    if not found.seeds:
        bounds = [f"at least {found.rate:.3f}"] * (found.rate > 0) + [f"below {found.below:.3f}"] * (found.below < inf)
        return f"{', '.join(bounds)} (search not ended)" if bounds else "search not ended"
    confirmed = f"; {found.seeds} seeds {found.confirmed:.3f}" if found.seeds > 1 else ""
    return f"{found.rate:.3f}{confirmed}{', raced' * found.raced}"


def _models(content: Content) -> list[str]:
    """The models that have costs, and so could be run; 8B in any case."""
    return [model for model in GAPS_MS if model == "8B" or model in content["costs"]]


def goodput_rows(content: Content) -> list[list[str]]:
    """One row per contender, with a column for each model, load and limit."""
    now, before = outcomes_of(content), outcomes_of(content, revisions_before(content))
    columns = [(model, load, gap) for model in _models(content) for load in LOADS for gap in GAPS_MS[model]]

    def cell(question: Question) -> str:
        found, earlier = known(content, now, question), known(content, before, question)
        words = in_words(found)
        if not (found and found.settled) and earlier and earlier.settled and earlier.rate:
            words += f"; before it was changed {in_words(earlier)}"
        return words

    head = ["contender", *(f"{model}, {load}, {gap:g} ms" for model, load, gap in columns)]
    rows = [
        [entrant.title, *(cell(Question(model, load, gap, name)) for model, load, gap in columns)]
        for name, entrant in ENTRANTS.items()
    ]
    return [head, *rows]


def goodput_table(content: Content) -> str:
    """The goodput as plain text."""
    head, *rows = goodput_rows(content)
    return table(head, rows)


def share_rows(content: Content) -> list[list[str]]:
    """What the policy keeps of the best other contender, with the first seed and with all, for each load and limit for
    which its rate has been found: by all trials, and on the cards on which the rates of both have been found.
    """
    outcomes = outcomes_of(content)
    cards = [outcomes_of(of_gpu(content, uuid)) for uuid in dict.fromkeys(row["gpu"] for row in content["trials"])]
    rows = [["load, limit", "seeds", "best other contender", "it keeps", "policy", "share", "on one card"]]
    for model in _models(content):
        for load, gap in product(LOADS, GAPS_MS[model]):
            question = Question(model, load, gap, "policy")
            for seeds in (1, len(SEEDS)):
                name, best = best_other(outcomes, question, seeds)
                mine = _found(content, outcomes, question, seeds)
                head = [f"{model} {load}, {gap:g} ms", str(seeds)]
                if not (best and mine):
                    if rows[-1][0] == head[0]:
                        rows.append([*head, NOT_RUN, "", "", "", ""])
                    continue
                other = replace(question, contender=name)
                pairs = [[_found(content, card, one, seeds) for one in (question, other)] for card in cards]
                shares = [one / another for one, another in pairs if one and another]
                rates = [f"{best:.3f}", f"{mine:.3f}", f"{mine / best:.2f}"]
                rows.append([*head, ENTRANTS[name].title, *rates, _span(shares)])
    return rows


def _found(content: Content, outcomes: Sequence[Outcome], question: Question, seeds: int) -> float:
    """The rate that a contender keeps with so many seeds; 0 if it keeps none, or if the search for it goes on."""
    found = known(content, outcomes, question)
    if found is None or found.seeds < seeds:
        return 0.0
    return (found.rate if seeds == 1 else found.confirmed) or 0.0


def _span(shares: Sequence[float]) -> str:
    if not shares:
        return NOT_RUN
    ends = dict.fromkeys((f"{min(shares):.2f}", f"{max(shares):.2f}"))
    return " to ".join(ends) + f" ({len(shares)} cards)" * (len(shares) > 1)


def trial_rows(content: Content) -> list[list[str]]:
    """One row per question that was run: its best trial, in detail."""
    outcomes = outcomes_of(content)
    rows = [
        [
            "contender", "load, limit", "settings", "rate", "seed", "gaps p50 / p99 / max, ms",
            "first token p50 / p99, s", "tokens/s", "decode next to prefill", "changes of placement",
            "switch on the host p50 / max, us", "between two steps p50, us", "W", "SM clock, MHz", "graphs", "contexts",
        ]
    ]  # fmt: skip
    questions = dict.fromkeys(one.trial.question for one in outcomes)
    for question in questions:
        kept = [row for row in trials_of(content) if trial_of(row).question == question and row["kept"]]
        if not kept:
            continue
        row = max(kept, key=lambda one: (one["rate"], -one["seed"]))
        gaps, first = row["gaps_ms"], row["first_tokens_s"]
        slowdown, watts, clock = row["slowdown_of_decode"], row["power_w"], row["sm_clock_mhz"]
        switch, between = row["switch_us"], row["turnaround_us"]
        rows.append(
            [
                ENTRANTS[question.contender].title,
                f"{question.model} {question.load}, {question.gap_ms:g} ms",
                ", ".join(f"{name} {value}" for name, value in json.loads(row["settings"]).items()),
                f"{row['rate']:.3f}",
                str(row["seed"]),
                f"{gaps['p50']:.1f} / {gaps['p99']:.1f} / {gaps['max']:.1f}",
                f"{first['p50']:.2f} / {first['p99']:.2f}",
                f"{row['output_tokens_per_s']:.0f}",
                "" if slowdown is None else f"{slowdown:.2f} x",
                str(row["placements"] - 1),
                "" if switch is None else f"{switch['p50']:.0f} / {switch['max']:.0f}",
                "" if between is None else f"{between['p50']:.0f}",
                "" if watts is None else f"{watts:.0f}",
                "" if clock is None else f"{clock['median']:.0f} (least {clock['least']})",
                f"{row['graphs']}, {row['graph_bytes'] / 2**20:.0f} MiB",
                f"{row['contexts']}, {row['context_bytes'] / 2**20:.0f} MiB",
            ]
        )
    return rows


def cost_rows(content: Content) -> list[list[str]]:
    """What steps cost by SMs, as measured: one row per step, one column per number of SMs."""
    rows = []
    for model, entry in content["costs"].items():
        times = {(one["what"], one["sms"]): one["ms"] for one in entry["times"]}
        sizes = sorted({sms for _, sms in times})
        head = ["model", "step, ms", *(f"{sms} SMs" for sms in sizes)]
        rows += [] if rows and rows[0] == head else [head]
        for what in dict.fromkeys(what for what, _ in times):
            cells = (times.get((what, sms)) for sms in sizes)
            rows.append([model, what, *("" if ms is None else f"{ms:.2f}" for ms in cells)])
    return rows


def slowdown_rows(content: Content) -> list[list[str]]:
    """How many times as long decode steps and chunks of prompts take next to each other as alone, by placement."""
    rows = [["model", "placement", "decode", "prefill"]]
    for model, entry in content["costs"].items():
        found = entry["costs"]["slowdowns"]
        rows += [[model, kind, f"{decode:.2f} x", f"{prefill:.2f} x"] for kind, (decode, prefill) in found.items()]
    return rows


def attention_rows(content: Content) -> list[list[str]]:
    """The rate of the decode attention by SMs and by tiling, and of the prefill attention by tiling."""
    found = content.get("attention")
    if found is None:
        return []
    rows = [["attention", "kernel", "SMs", "rate"]]
    what = f"decode of {found['decode_rows']} at {found['decode_context']}"
    whole = str(content["sm_count"])
    rows += [[what, "as used", sms, f"{rate:.0f} GB/s"] for sms, rate in found["decode_gb_per_s"].items()]
    rows += [
        [what, _tiling(kernel), sms, f"{rate:.0f} GB/s"]
        for kernel, rates in found["decode_tilings"].items()
        for sms, rate in rates.items()
    ]
    for chunk, rates in found["prefill_tflop_per_s"].items():
        rows += [[chunk, _tiling(kernel), whole, f"{rate:.0f} TFLOP/s"] for kernel, rate in rates.items()]
    return rows


def _tiling(name: str) -> str:
    """A tiling in words, if it is one."""
    if not name.startswith("("):
        return name
    tile, warps, stages = name.strip("()").split(", ")
    return f"tile {tile}, {warps} warps, {stages} stages"


def soak_rows(content: Content) -> list[list[str]]:
    """What was served for how long."""
    rows = [
        [
            "model",
            "minutes",
            "decode steps",
            "layout switches",
            "free memory of the GPU, first to last",
            "memory of the process",
            "answers checked",
            "wrong",
        ]
    ]
    for model in dict.fromkeys(one["model"] for one in content["soaks"]):
        mine = [one for one in content["soaks"] if one["model"] == model]
        recorded = [one for one in mine if "held_bytes" in one]
        rows.append(
            [
                model,
                f"{sum(one['seconds'] for one in mine) / 60:.1f} in {len(mine)} runs",
                f"{sum(one['decode_steps'] for one in mine):,}",
                f"{sum(one['switches'] for one in mine):,}",
                _drift(mine, "free_bytes"),
                f"{_drift(recorded, 'held_bytes')}, of {len(recorded)} runs" if recorded else "not recorded",
                str(sum(one["checked"] for one in mine)),
                str(sum(one["wrong"] for one in mine)),
            ]
        )
    return rows


def _drift(soaks: Sequence[Mapping[str, Any]], name: str) -> str:
    most = max(abs(one[name][0] - one[name][1]) for one in soaks)
    return f"at most {most / 2**20:.0f} MiB in a run"


# Pictures

BAR, GAP, LEFT, PLOT, MARGIN = 14, 8, 250, 380, 20


def goodput_picture(contents: Sequence[Content]) -> str:
    """Bars of goodput by contender, for each load and limit that was run on a card; contenders without a run say so."""
    title = "Goodput: requests/s with 99% of gaps and first tokens in time"
    drawing = Drawing(title)
    drawing.text(MARGIN, 30, title, size=15, bold=True, room=LEFT + PLOT + 120)
    y, missing = 52.0, 0
    for content in contents:
        outcomes = outcomes_of(content)
        for model in _models(content):
            for load in LOADS.values():
                for gap in GAPS_MS[model]:
                    found = {name: known(content, outcomes, Question(model, load.name, gap, name)) for name in ENTRANTS}
                    if any(one is not None for one in found.values()):
                        y = _bars(drawing, y, f"{content['card']}: {model}, {load.title}; gaps {gap:g} ms", found)
                    else:
                        missing += 1
    if missing or not contents:
        words = f"{missing} other questions of the study" if y > 52 else "every question of the study"
        drawing.text(MARGIN, y + 12, f"{NOT_RUN}: {words}", kind="faint", size=11)
        y += 22
    return drawing.svg(LEFT + PLOT + 200, y + 8)


def _bars(drawing: Drawing, y: float, title: str, found: Mapping[str, Goodput | None]) -> float:
    drawing.text(MARGIN, y + 12, title, bold=True, size=12)
    y += 22
    rates = {name: (one.rate or 0.0) if one is not None else 0.0 for name, one in found.items()}
    most = max(rates.values()) or 1.0
    for name, one in found.items():
        drawing.text(LEFT - 10, y + 11, ENTRANTS[name].title, anchor="end", size=11)
        width = PLOT * rates[name] / most
        if width:
            drawing.rectangle(LEFT, y, width, BAR, kind="best" if rates[name] == most else "bar", corner=2)
        drawing.text(LEFT + width + 8, y + 11, in_words(one), size=11, kind="ink" if width else "faint")
        y += BAR + GAP
    return y + 8


def timelines_picture(contents: Sequence[Content]) -> str:
    """One second of each contender by SM, for long documents: of the trial at its highest rate that was kept, or at the
    highest one, if it keeps none.
    """
    title = "One second of each contender by SM: decode, prefill, and both in one step"
    drawing = Drawing(title)
    drawing.text(MARGIN, 30, title, size=15, bold=True)
    colours = colours_of(("decode", "prefill", "both"))
    entries = [Entry(colour, name[0].upper(), name, "") for name, colour in colours.items()]
    y = 44 + legend(drawing, MARGIN, 44, entries, LEFT + PLOT) + 14
    rows = {name: _best_of(contents, name) for name in ENTRANTS}
    for name, row in rows.items():
        if row is None:
            continue
        drawing.text(MARGIN, y + 12, ENTRANTS[name].title, bold=True, size=12)
        content, trial = row
        words = f"{content['card']}, {trial['rate']:.2f} requests/s, gaps {trial['gap_ms']:g} ms"
        words += "" if trial["kept"] else "; not kept"
        drawing.text(LEFT + 50, y + 12, words, kind="faint", size=11, room=PLOT)
        y = _lane_shapes(drawing, y + 20, trial["timeline"], content["sm_count"], colours) + 14
    run = {row["contender"] for content in contents for row in content["trials"]}
    for words, known in ((NOT_RUN, False), ("no time line was kept", True)):
        missing = [ENTRANTS[name].title for name, row in rows.items() if row is None and (name in run) == known]
        for line in textwrap.wrap(f"{words}: {', '.join(missing)}", 100) if missing else []:
            drawing.text(MARGIN, y + 12, line, kind="faint", size=11)
            y += 16
    return drawing.svg(LEFT + PLOT + 160, y + 8)


def _best_of(contents: Sequence[Content], contender: str) -> tuple[Content, Mapping[str, Any]] | None:
    found = [
        (content, row)
        for content in contents
        for row in trials_of(content)
        if row["contender"] == contender and row["load"] == "documents" and row["timeline"]
        if row["gap_ms"] in GAPS_MS[row["model"]]
    ]
    return max(found, key=lambda one: (one[1]["kept"], one[1]["rate"])) if found else None


def _lane_shapes(
    drawing: Drawing, y: float, steps: Sequence[Sequence[Any]], sm_count: int, colours: Mapping[str, str]
) -> float:
    height, width = 66.0, float(LEFT + PLOT + 120 - MARGIN)
    drawing.rectangle(MARGIN, y, width, height, kind="panel")
    for lane, begin, end, rows, tokens, kind, decode_sms, prefill_sms in steps:
        low, high = _band(lane, kind, decode_sms, prefill_sms, sm_count)
        what = "both" if rows and tokens else "decode" if rows else "prefill"
        drawing.rectangle(
            MARGIN + width * begin,
            y + height * low,
            max(0.4, width * (end - begin)),
            height * (high - low),
            fill=colours[what],
            hover=f"{what}: {rows} answers, {tokens} tokens of prompts, {1e3 * (end - begin):.1f} ms",
        )
    return y + height


def _band(lane: str, kind: str, decode_sms: int | None, prefill_sms: int | None, sm_count: int) -> tuple[float, float]:
    """The part of the SMs that a step may use, from the top. Of lanes that share all SMs, decode is drawn narrower."""
    if kind == "disjoint":
        bound = (decode_sms or 0) / sm_count
        return (0.0, bound) if lane == "decode" else (bound, 1.0)
    if kind == "overlay" and lane == "prefill":
        return 1 - (prefill_sms or sm_count) / sm_count, 1.0
    if kind == "one":
        return 0.0, 1.0
    return (0.0, 0.3) if lane == "decode" else (0.3, 1.0)


def head(content: Content) -> str:
    """Which card, and when."""
    runs = content["runs"]
    dates = sorted({run["date"] for run in runs})
    when = " and ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "no run"
    card = f"{content['card']}, {content['sm_count']} SMs, driver {content['driver']} (CUDA {content['cuda']}); {when}"
    counted, run = len(trials_of(content)), len(content["trials"])
    if not run:
        return f"{card}. No trial was run."
    trials = f"{run} trials" if counted == run else f"{run} trials, of which {counted} are of the present contenders"
    absent = [model for model in GAPS_MS if not any(row["model"] == model for row in content["trials"])]
    checked = [row for row in content["trials"] if row.get("checked")]
    wrong = sum(row["wrong"] for row in checked)
    tokens = f" The tokens of {len(checked)} answers of trials were checked, {wrong} were wrong." if checked else ""
    return (
        f"{card}, {trials}. Goodput is in requests per second: the rate that the first seed keeps, then the one that "
        "several seeds keep. Settings are mostly those predicted to be best; a rate marked raced was not beaten by "
        "other settings." + "".join(f" No trial of {model} shapes was run." for model in absent) + tokens
    )
