"""Prefill next to decode under a limit on the time between tokens: contenders, loads, goodput.

    python -m serving check            the kernels against torch, and their speed
    python -m serving costs            what steps cost on this card, by SMs
    python -m serving predict          which settings and rates to begin with; a run predicts what it needs
    python -m serving worlds           rehearse the policy on cards whose costs are not as expected
    python -m serving run              trials, those of most worth first, until --minutes are over
    python -m serving soak             serve a random load with changes of layout, and check tokens and memory
    python -m serving status           what is known, what is next
    python -m serving merge FILE...    add the results of other processes

All write to one file of results (or --out), which the next run continues. All but predict, worlds, status
and merge need torch and a GPU. On several GPUs, one process for each: --share 1/4 to 4/4, with a folder of its own,
then merge.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from serving.contenders import DECODES
from serving.costs import Costs
from serving.entrants import ENTRANTS
from serving.loads import LOADS, load_of
from serving.loop import Record
from serving.search import DEPTHS, GAPS_MS, SHARE, Question, Trial, next_trial, questions
from serving.shapes import SHAPES
from serving.store import KIND, Store, merged, settings_of
from serving.trials import predict, rehearse, row_of, serve, steps_of
from serving.worlds import worlds

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results"
# What checking and saving take of a run, at most; and by how much trials take longer than rehearsed, as clocks fall.
RESERVE_S, LONGER = 4.0, 1.1
# Questions whose trials raised an error before a run ends: an error of the device stays.
MOST_FAILED = 2
# Beyond the time that a run has, after which it has hung.
PATIENCE_S = 15.0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter, epilog=__doc__
    )
    found.add_argument("command", choices=("check", "costs", "predict", "worlds", "run", "soak", "status", "merge"))
    found.add_argument("files", type=Path, nargs="*", help="results to merge")
    found.add_argument("--out", type=Path, help="folder of the results (default: studies/serving/results)")
    found.add_argument("--minutes", type=float, default=9.0, help="end before that (default: 9)")
    found.add_argument("--model", choices=tuple(SHAPES), default="8B", help="shapes of the decoder (default: 8B)")
    found.add_argument("--load", choices=tuple(LOADS), help="one load (default: all, by worth)")
    found.add_argument("--contender", help="one contender")
    found.add_argument("--gap-ms", type=float, help="one limit on the time between tokens")
    found.add_argument(
        "--ask",
        type=one_question,
        nargs="+",
        action="append",
        metavar="LOAD/GAP/CONTENDER",
        help="these, first of all a rate for each; more than once: one group after the other",
    )
    found.add_argument(
        "--depth",
        choices=DEPTHS,
        default=DEPTHS[-1],
        help="whether the rates of the best other contender are kept; a rate of its own that the first seed keeps, or "
        f"all seeds; whether {SHARE:g} of the best is kept, where that is open; a rate that no other settings beat "
        "(default)",
    )
    found.add_argument(
        "--share",
        type=share,
        default=(1, 1),
        help="the N-th of M parts of the questions, or seeds of a soak of its own, as N/M",
    )
    found.add_argument(
        "--one-card",
        action="store_true",
        help="of a run: let only trials of this card count, as cards differ by as much as contenders do",
    )
    found.add_argument("--distinct-layers", type=int, help="layers with weights of their own, where memory is short")
    return found


def one_question(text: str) -> tuple[str, float, str]:
    """documents/25/chunked as a load, a limit in milliseconds and a contender."""
    load, gap_ms, contender = text.split("/")
    if load not in LOADS or contender not in ENTRANTS:
        raise ValueError(f"{text} is not a question: loads are {', '.join(LOADS)}, contenders {', '.join(ENTRANTS)}")
    return load, float(gap_ms), contender


def share(text: str) -> tuple[int, int]:
    """2/4 as the numbers 2 and 4."""
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(f"a share is from 1/{parts} to {parts}/{parts}, not {text}")
    return part, parts


def asked(arguments: argparse.Namespace) -> list[list[Question]]:
    """The questions that the options leave, in stages: those of one load, or those that are asked one by one.

    Shares take turns among the questions of most worth, and among the others.
    """
    if arguments.ask:
        return [[Question(arguments.model, *one) for one in group] for group in arguments.ask]
    part, parts = arguments.share
    stages: dict[str, list[Question]] = defaultdict(list)
    for group in questions([arguments.model]):
        mine = [
            one
            for one in group
            if arguments.load in (None, one.load)
            and arguments.contender in (None, one.contender)
            and arguments.gap_ms in (None, one.gap_ms)
        ]
        stages[group[0].load] += mine[part - 1 :: parts]
    return [stage for stage in stages.values() if stage]


def next_of(
    store: Store,
    stages: Sequence[Sequence[Question]],
    without: Collection[Question] = (),
    depth: str = DEPTHS[-1],
) -> Trial | None:
    """The next trial, as deep in each stage as is wanted. First comes whether each contender keeps what the best other
    one keeps, then a rate for each question, by one seed and the settings that are predicted to be best; then the other
    seeds, then SHARE of the best, then the other settings.

    without: questions that are left out.
    """
    outcomes = store.outcomes
    for stage in stages:
        for deep in DEPTHS[: DEPTHS.index(depth) + 1]:
            for question in stage:
                if question in without:
                    continue
                known = prediction(store, question)
                settings = settings_of(store.content, outcomes, question)
                trial = next_trial(outcomes, question, settings, known["starts"], depth=deep)
                if trial is not None:
                    return trial
    return None


def prediction(store: Store, question: Question) -> dict[str, Any]:
    """What the cost model predicts of a question: entered, so that a search that is saved goes on as it began."""
    known: dict[str, dict[str, Any]] = store.content["predictions"]
    if str(question) not in known:
        known[str(question)] = predict(question, costs_of(store, question.model, question.load))
    return known[str(question)]


def run(store: Store, arguments: argparse.Namespace, until: float) -> int:
    from serving.bench import Bench

    costs = costs_of(store, arguments.model)
    stages = asked(arguments)
    failed: dict[Question, str] = {}
    too_long: set[Question] = set()  # for the time that is left

    def leave_out(trial: Trial, rehearsed: Record) -> None:
        too_long.add(trial.question)
        print(f"next: {described(trial)}, about {rehearsed.seconds:.0f} s, for which no time is left")

    with Bench(SHAPES[arguments.model], DECODES, arguments.distinct_layers) as bench:
        of_load: dict[str, Costs] = {}
        while (trial := next_of(store, stages, {*failed, *too_long}, arguments.depth)) is not None:
            load = trial.question.load
            rehearsed = rehearse(trial, of_load.get(load, costs))
            left = until - time.monotonic() - RESERVE_S
            if LONGER * rehearsed.seconds > left:
                leave_out(trial, rehearsed)
                continue
            if load not in of_load:
                bench.card(load_of(load, arguments.model))
                # With the contexts of the load: attention takes no longer in mixed steps, GEMMs do.
                of_load[load] = replace(costs, mixed=bench.mixed(costs))
                print(f"{load}: mixed steps by rows, {dict(of_load[load].mixed)} times as long", flush=True)
                continue  # the same trial, with these costs and what is left of the time
            try:
                row = run_one(trial, of_load[load], bench, rehearsed, left)
                if row is None:
                    leave_out(trial, rehearsed)
                    continue
                row["costs_run"] = store.content["costs"][arguments.model]["run"]
                row["mixed"] = of_load[load].mixed
                # As many processes ran at once, each on a GPU of the same host.
                row["processes"] = arguments.share[1]
            except Exception as error:  # one contender's error is not the end of the others'
                traceback.print_exc()
                failed[trial.question] = f"{type(error).__name__}: {error}".split("\n")[0]
                store.add("errors", {"trial": described(trial), "error": failed[trial.question]})
                if len(failed) > MOST_FAILED:
                    break
                bench.close()
                continue
            store.add("trials", row)
            print(f"{described(trial)}: {verdict(row)}", flush=True)
    for question, error in failed.items():
        print(f"{question} failed: {error}", file=sys.stderr)
    # A question without a prediction has had no trial.
    predictions = store.content["predictions"]
    left = [
        str(one)
        for one in chain.from_iterable(stages)
        if str(one) not in predictions or next_of(store, [[one]], depth=arguments.depth) is not None
    ]
    print(f"not answered yet: {', '.join(left)}" if left else "all questions are answered")
    return int(bool(failed))


def run_one(trial: Trial, costs: Costs, bench: Any, rehearsed: Record, most_seconds: float) -> dict[str, Any] | None:
    """One trial on the card, with the graphs that the rehearsal needed; what is kept of it. None if it would not end in
    the time that capturing the graphs has left.
    """
    began = time.monotonic()
    card = bench.card(load_of(trial.question.load, trial.question.model))
    card.hints = dict.fromkeys(costs.hints, True)
    # What steps take decides where the next ones run, so a trial is not exactly what was rehearsed.
    steps = rehearsed.steps if bench.knows(trial) else steps_of(trial, costs, rehearsed)
    card.prepare(card.shot(one.lane, one.step, one.placement) for one in steps)
    prepared = time.monotonic() - began
    if LONGER * rehearsed.seconds > most_seconds - prepared:
        return None
    bench.begin()
    record = serve(trial, costs, card, most_seconds=most_seconds - prepared, on_end=bench.note)
    return {**row_of(trial, record), **bench.end(), **bench.check(), "prepare_s": round(prepared, 1)}


def described(trial: Trial) -> str:
    return f"{trial.question} {trial.settings} at {trial.rate:.3f}/s, seed {trial.seed}"


def verdict(row: dict[str, Any]) -> str:
    gaps, first = row["gaps_ms"] or {}, row["first_tokens_s"] or {}
    outcome = "out of time" if row["out_of_time"] else "kept" if row["kept"] else "not kept"
    return (
        f"{outcome} after {row['seconds']:.0f} s; gaps p50 {gaps.get('p50')} p99 "
        f"{gaps.get('p99')} max {gaps.get('max')} ms, first tokens p99 {first.get('p99')} s, "
        f"{row['output_tokens_per_s']} tokens/s; {row['wrong']} of {row['checked']} answers wrong"
    )


def costs_of(store: Store, model: str, load: str = "documents") -> Costs:
    """The costs of a model, with what steps of decodes and prompts took in the last trial of a load, or of any."""
    trials = [row for row in store.content["trials"] if row["model"] == model and "mixed" in row]
    mixed = [row["mixed"] for row in sorted(trials, key=lambda row: row["load"] == load)]
    try:
        costs = {**store.content["costs"][model]["costs"], "mixed": mixed[-1] if mixed else ()}
        return Costs.from_json(json.dumps(costs))
    except KeyError:
        raise SystemExit(f"{store.path} has no costs of {model}: run 'serve.py costs --model {model}' first") from None


def check(store: Store, arguments: argparse.Namespace, until: float) -> int:
    from cuda_gctx import Device, PartitionPool
    from serving import calibrate

    shape = SHAPES[arguments.model]
    errors = calibrate.check_attention(shape)
    for name, error in errors.items():
        print(f"attention, {name}: relative error {error:.2e}")
    with PartitionPool(Device(0)) as pool:
        rates = calibrate.attention_rates(shape, pool, (16, 24, 32, 48, 64), until=until)
    print(json.dumps(rates, indent=1))
    store.content["attention"] = {"run": store.run, "model": arguments.model, "errors": errors, **rates}
    store.save()
    # NaN is not within the tolerance either.
    wrong = [name for name, error in errors.items() if not error <= calibrate.TOLERANCE]
    if wrong:
        print(f"errors above {calibrate.TOLERANCE}: {', '.join(wrong)}", file=sys.stderr)
    return bool(wrong)


def measure(store: Store, arguments: argparse.Namespace, until: float) -> int:
    from serving import calibrate
    from serving.bench import Bench

    load = load_of(arguments.load or "documents", arguments.model)
    decodes = [1, 4, load.sequences]
    with Bench(SHAPES[arguments.model], decodes, arguments.distinct_layers) as bench:
        card = bench.card(load)

        def save(costs: Costs, times: list[dict[str, Any]]) -> None:
            kept = {"costs": json.loads(costs.to_json()), "times": times, **bench.memory()}
            store.put_costs(arguments.model, kept)

        calibrate.measure_costs(
            card, (32, 24, 48, 16, 64), (64, 256, 512, 1024, 2048), until=until - RESERVE_S, save=save
        )
    known = store.content["costs"][arguments.model]
    for one in known["times"]:
        print(f"{one['sms']:4} SMs  {one['what']:28} {one['ms']:9.3f} ms")
    print(f"slowdowns of decode and prefill next to each other: {known['costs']['slowdowns']}")
    return 0


def predicted(store: Store, arguments: argparse.Namespace, until: float) -> int:
    for group in asked(arguments):
        for question in group:
            if time.monotonic() > until:
                return 0
            found = prediction(store, question)
            store.save()
            starts = ", ".join(f"{start:.3f}" for start in found["starts"])
            print(f"{question}: {starts}/s with {found['settings'][0]}", flush=True)
    return 0


def rehearsed(store: Store, arguments: argparse.Namespace) -> int:
    """Whether the policy keeps up with the best in worlds; those in which it does not."""
    gaps = [arguments.gap_ms] if arguments.gap_ms else GAPS_MS[arguments.model]
    until = time.monotonic() + 60 * arguments.minutes  # for each card
    shares: list[float] = []
    for world in worlds(costs_of(store, arguments.model), gaps, [arguments.load] if arguments.load else tuple(LOADS)):
        if time.monotonic() > until:
            break
        rate, name = world.best()
        shares.append(world.share_of_policy(rate))
        if shares[-1] < SHARE:
            print(f"{world}: {shares[-1]:g} of what {name} keeps, {rate:.3f}/s", flush=True)
    behind = sum(share < SHARE for share in shares)
    print(f"the policy keeps {SHARE:g} of the best in {len(shares) - behind} of {len(shares)} worlds")
    return int(behind > 0)


def status(store: Store, arguments: argparse.Namespace) -> int:
    from serving.report import goodput_table

    print(goodput_table(store.content))
    known = arguments.model in store.content["costs"]
    if known and (trial := next_of(store, asked(arguments), depth=arguments.depth)) is not None:
        print(f"\nnext: {described(trial)}")
    return 0


def merge(folder: Path, files: Sequence[Path]) -> int:
    """Add results to those of a folder, by card."""
    by_name = groupby(sorted(files, key=lambda path: path.name), key=lambda path: path.name)
    for name, others in by_name:
        contents = [json.loads(path.read_text()) for path in others]
        path = folder / name
        store = Store(path, contents[0] if not path.exists() else json.loads(path.read_text()))
        store.content = merged(store.content, contents)
        store.save()
        print(f"{path}: {len(store.content['trials'])} trials, {len(store.content['soaks'])} soaks")
    return 0


def main() -> int:
    arguments = parser().parse_args()
    if arguments.one_card and (arguments.command != "run" or (arguments.share[1] > 1 and not arguments.ask)):
        parser().error("--one-card is for a run; without --ask, --share would give each card other contenders")
    until = time.monotonic() + 60 * arguments.minutes
    from cuda_gctx import Device
    from cuda_gctx.measure.machine import described as machine
    from cuda_gctx.measure.results import file_name, folder_of_results

    folder = folder_of_results(arguments.out, RESULTS)
    if arguments.command == "merge":
        return merge(folder, arguments.files)
    if arguments.command in ("predict", "worlds", "status"):
        found = sorted(folder.glob(f"*-{KIND}.json"))
        if not found:
            raise SystemExit(f"{folder} has no results of this study: run 'serve.py costs' on a GPU first")
        failed = False
        for path in found:
            store = Store(path, json.loads(path.read_text()))
            print(path)
            if arguments.command == "predict":
                predicted(store, arguments, until)
            elif arguments.command == "status":
                status(store, arguments)
            else:
                failed = rehearsed(store, arguments) > 0 or failed
        return int(failed)
    # Whatever hangs, the run ends, and says where it was.
    faulthandler.dump_traceback_later(60 * arguments.minutes + PATIENCE_S, exit=True)
    # A hardware queue for each stream; before the driver is used. With fewer, streams wait for each other.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    head = machine(Device(0), "Serving study, written by studies/serving", REPOSITORY)
    store = Store(folder / file_name(head, KIND), head)
    if arguments.one_card:
        store.gpu = str(Device(0).uuid)
    if arguments.command == "check":
        return check(store, arguments, until)
    if arguments.command == "costs":
        return measure(store, arguments, until)
    if arguments.command == "soak":
        from serving.soak import soak

        return soak(store, SHAPES[arguments.model], until, arguments.share[0], arguments.distinct_layers)
    return run(store, arguments, until)


if __name__ == "__main__":
    sys.exit(main())
