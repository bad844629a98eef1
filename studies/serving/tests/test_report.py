"""The command of the study on the software driver's card, and the page that is written from its results."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import serve
from serving import loads, report, trials
from serving.costs import made_up
from serving.search import Goodput, Question, Trial, on_grid, written
from serving.shapes import SHAPES
from serving.store import Store
from serving.virtual import VirtualExecutor

COSTS = made_up(SHAPES["8B"])
HEAD = {
    "card": "made-up card",
    "cuda": "13.0",
    "driver": None,
    "sm_count": 132,
    "simulated": True,
    "date": "2026-11-22",
}
BENCH = {
    "late_captures": 0,
    "switch_us": None,
    "gpu": "GPU-1",
    "power_w": 512.3,
    "sm_clock_mhz": {"least": 1755, "median": 1980},
    "graphs": 7,
    "graph_bytes": 1 << 20,
}
MEMORY = {"layouts": 2, "free_bytes": 1 << 30, "contexts": 3, "context_bytes": 12 << 20, "distinct_layers": 32}


@pytest.fixture(autouse=True)
def short_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    from serving.loads import LOADS

    for name, load in list(LOADS.items()):
        monkeypatch.setitem(LOADS, name, replace(load, requests=6))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "made-up-card-driver-13.0-serving.json", HEAD)
    made.put_costs("8B", {"costs": json.loads(COSTS.to_json()), "times": [{"sms": 132, "what": "a step", "ms": 5.0}]})
    return made


def question(contender: str = "chunked", gap_ms: float = 50.0) -> Question:
    return Question("8B", "documents", gap_ms, contender)


def trial(contender: str = "chunked", rate: float = 0.2, seed: int = 1) -> Trial:
    entrant = report.ENTRANTS[contender]
    limits = trials.limits_of(question(contender))
    return Trial(question(contender), written(entrant.settings(COSTS, limits)[0]), rate, seed)


def predict(store: Store, *questions: Question, start: float = 0.2, settings: int = 2) -> None:
    """Enters predictions, which take seconds to make."""
    for one in questions:
        some = report.ENTRANTS[one.contender].settings(COSTS, trials.limits_of(one))[:settings]
        known = {"settings": [written(each) for each in some], "starts": [start] * 3, "rates": {}}
        store.content["predictions"][str(one)] = known


def add(store: Store, one: Trial) -> dict[str, Any]:
    record = trials.rehearse(one, COSTS)
    row = {**trials.row_of(one, record), **BENCH, **MEMORY}
    store.add("trials", row)
    return row


def test_a_row_says_what_a_trial_showed(store: Store) -> None:
    row = add(store, trial("disjoint"))
    assert row["kept"]
    assert row["complete"]
    assert 0 < row["gaps_ms"]["p50"] <= row["gaps_ms"]["p99"] <= row["gaps_ms"]["max"]
    assert row["slowdown_of_decode"] == pytest.approx(COSTS.slowdowns["disjoint"][0], rel=0.05)
    assert row["timeline"]
    assert all(0 <= begin <= end <= 1 for _, begin, end, *_ in row["timeline"])
    assert json.loads(json.dumps(row)) == row


def test_the_best_trial_is_shown_in_detail(store: Store) -> None:
    for rate in (0.1, 0.2):
        add(store, trial("disjoint", rate))
    head, row = report.trial_rows(store.content)
    shown = dict(zip(head, row, strict=True))
    assert shown["rate"] == "0.200"
    assert shown["W"] == "512"
    assert shown["SM clock, MHz"] == "1980 (least 1755)"
    assert shown["graphs"] == "7, 1 MiB"


def test_what_was_not_run_is_printed_as_such(store: Store) -> None:
    text = report.goodput_table(store.content)
    assert text.count(report.NOT_RUN) == 8 * 3 * 2
    add(store, trial())
    assert "at least 0.200 (search not ended)" in report.goodput_table(store.content)


def test_what_the_policy_keeps_of_the_best_other_contender_is_shown_once_its_rate_is_found(store: Store) -> None:
    for name, rate in (("chunked", 0.2), ("layers", 0.1), ("policy", 0.19)):
        row = add(store, trial(name, rate))
        assert row["kept"]
    assert len(report.share_rows(store.content)) == 1, "the search goes on"
    store.content["trials"].append({**row, "kept": False, "rate": 0.191})
    _, *shown = report.share_rows(store.content)
    label = "8B documents, 50 ms"
    assert shown == [
        [label, "1", "chunked prefill", "0.200", "0.190", "0.95", report.NOT_RUN],
        [label, "3", report.NOT_RUN, "", "", "", ""],
    ]


def test_what_the_policy_keeps_is_also_compared_on_each_card_on_which_both_ran(store: Store) -> None:
    kept = {name: add(store, trial(name, 0.2)) for name in ("chunked", "layers", "policy")}
    store.content["trials"].clear()

    def found(name: str, gpu: str, *below: int) -> None:
        """Enters trials after which a rate is found with each seed, so many steps of the grid below another one."""
        store.content["trials"] += [
            {**kept[name], "gpu": gpu, "seed": seed, "rate": on_grid(0.2, -steps - 1 + missed), "kept": not missed}
            for seed, steps in enumerate(below, 1)
            for missed in (False, True)
        ]

    def shown() -> list[list[str]]:
        return [[one[2], *one[5:]] for one in report.share_rows(store.content)[1:]]

    found("chunked", "a", 1)
    found("policy", "b", 2)
    assert shown() == [["chunked prefill", "0.97", report.NOT_RUN], [report.NOT_RUN, "", ""]]
    found("chunked", "b", 2)
    assert shown()[0][2] == "1.00"
    # What one has kept on another card says nothing of this one.
    found("chunked", "c", 3, 3, 5)
    found("policy", "c", 4, 4, 7)
    assert shown()[0][2] == "0.97 to 1.00 (2 cards)"
    assert shown()[1] == ["chunked prefill", "0.94", "0.94"]
    # Another contender is the best one with all seeds. On one card, nothing that it keeps is known yet.
    found("layers", "c", 4, 4, 4)
    found("policy", "d", 4, 4, 7)
    store.content["trials"].append({**kept["layers"], "gpu": "d", "rate": on_grid(0.2, 5), "kept": False})
    assert shown()[1] == ["layers of prefill between decode steps", "0.92", "0.92"]


def test_a_rate_whose_search_goes_on_is_not_compared(store: Store) -> None:
    """After other settings have beaten those that were found first."""
    for name, which, rates in (("chunked", 0, (0.2,)), ("policy", 0, (0.19,)), ("policy", 1, (0.21, 0.22))):
        settings = written(report.ENTRANTS[name].settings(COSTS, trials.limits_of(question(name)))[which])
        for rate in rates:
            add(store, replace(trial(name, on_grid(rate)), settings=settings))
    store.content["trials"].append({**store.content["trials"][1], "kept": False, "rate": on_grid(0.19, 1)})
    assert "at least" in report.in_words(report.known(store.content, store.outcomes, question("policy")))
    assert report.share_rows(store.content)[1:] == []


def test_until_a_rate_is_found_that_of_an_earlier_revision_is_shown_as_such(store: Store) -> None:
    row = add(store, trial("policy", 0.2))
    missed = {**row, "kept": False, "rate": 0.202}
    store.content["trials"] = [{**row, "revision": row["revision"] - 1}, {**missed, "revision": row["revision"] - 1}]
    assert f"{report.NOT_RUN}; before it was changed 0.200" in report.goodput_table(store.content)
    store.content["trials"].append({**row, "rate": 0.1})
    assert "at least 0.100 (search not ended); before it was changed 0.200" in report.goodput_table(store.content)
    store.content["trials"].append({**missed, "rate": 0.101})
    assert "before it was changed" not in report.goodput_table(store.content)
    # Also if the contender has kept a rate since then with other settings.
    other = written(report.ENTRANTS["policy"].settings(COSTS, trials.limits_of(question()))[1])
    store.content["trials"][2:] = [{**row, "rate": 0.1, "settings": other}]
    assert "at least 0.100 (search not ended); before it was changed 0.200" in report.goodput_table(store.content)


def test_a_search_that_goes_on_says_between_which_rates_it_is() -> None:
    assert report.in_words(Goodput(0.2, below=0.3)) == "at least 0.200, below 0.300 (search not ended)"
    assert report.in_words(Goodput(0.0, below=0.3)) == "below 0.300 (search not ended)"
    assert report.in_words(Goodput(0.0)) == "search not ended"


def test_the_head_says_which_models_were_not_run_and_which_trials_count(store: Store) -> None:
    assert report.head(store.content).endswith("No trial was run.")
    add(store, trial())
    add(store, trial(rate=0.1))
    store.content["trials"][0]["revision"] -= 1
    text = report.head(store.content)
    assert "2 trials, of which 1 are of the present contenders. " in text
    assert "8B shapes" not in text


def test_a_rate_is_shown_with_the_seeds_that_have_kept_it(store: Store) -> None:
    predict(store, question(), start=0.6)
    shown: list[str] = []
    while (following := serve.next_of(store, [[question()]])) is not None:
        row = {**trials.row_of(following, trials.rehearse(following, COSTS)), **BENCH, **MEMORY}
        store.content["trials"].append({**row, "run": 0})
        shown.append(report.in_words(report.known(store.content, store.outcomes, question())))
    forms = [re.sub(r"\d+\.\d+", "n", text) for text in shown]
    order = ["n", "n; 2 seeds n", "n; 3 seeds n", "n; 3 seeds n, raced"]
    assert [form for form in dict.fromkeys(forms) if "search not ended" not in form] == order
    assert f" {shown[-1]} " in report.goodput_table(store.content)


def test_pictures_are_drawn_with_and_without_results(store: Store) -> None:
    for contents in ([], [store.content]):
        for picture in (report.goodput_picture(contents), report.timelines_picture(contents)):
            ElementTree.fromstring(picture)
            assert report.NOT_RUN in picture
    for contender in report.ENTRANTS:
        add(store, trial(contender, 0.1))
    picture = report.timelines_picture([store.content])
    ElementTree.fromstring(picture)
    assert "tokens of prompts" in picture


def test_predictions_put_the_best_settings_first() -> None:
    found = trials.predict(question("prefill-first"), COSTS)
    rates = [found["rates"][one] for one in found["settings"]]
    assert rates == sorted(rates, reverse=True)
    assert len(found["starts"]) == 3
    assert min(found["starts"]) > 0
    assert found["starts"][0] >= rates[0]


def answers_all(store: Store, stages: list[list[Question]]) -> list[Question]:
    """Runs every trial on the virtual clock; returns the questions in the order in which they were asked."""
    order = []
    while (following := serve.next_of(store, stages)) is not None:
        add(store, following)
        order.append(following.question)
    return order


def test_all_questions_have_a_rate_before_seeds_confirm_and_all_are_confirmed_before_settings_are_raced(
    store: Store,
) -> None:
    both = [question("chunked"), Question("8B", "retrieval", 50.0, "chunked")]
    predict(store, *both)
    order = answers_all(store, [both])
    blocks = [one for one, before in zip(order, [None, *order], strict=False) if one != before]
    assert blocks[:4] == both * 2
    changes = [i for i, one in enumerate(order) if i == 0 or one != order[i - 1]]
    rows = store.content["trials"]
    assert {(row["seed"], row["settings"]) for row in rows[: changes[2]]} == {(1, rows[0]["settings"])}
    assert {row["seed"] for row in rows[changes[2] : changes[4]]} == {2, 3}
    assert rows[changes[4]]["settings"] != rows[0]["settings"]
    assert len([one for one in store.outcomes if one.trial.question in both]) == len(order)


def test_a_question_that_fails_is_left_out(store: Store) -> None:
    both = [question("chunked"), question("disjoint")]
    predict(store, *both)
    trial = serve.next_of(store, [both], {both[0]})
    assert trial is not None
    assert trial.question == both[1]
    assert serve.next_of(store, [both], set(both)) is None


def test_shares_are_disjoint_and_each_begins_with_the_most_worth() -> None:
    whole = [one for group in serve.asked(serve.parser().parse_args(["run"])) for one in group]
    parts = [
        [one for group in serve.asked(serve.parser().parse_args(["run", "--share", f"{n}/4"])) for one in group]
        for n in (1, 2, 3, 4)
    ]
    assert sorted(map(str, whole)) == sorted(str(one) for part in parts for one in part)
    assert [part[0].contender for part in parts] == ["chunked", "overlay", "disjoint", "policy"]
    assert all(part[0].load == part[1].load == "documents" for part in parts)
    for wrong in ("5/4", "0/4", "half"):
        with pytest.raises(SystemExit):
            serve.parser().parse_args(["run", "--share", wrong])


def test_questions_can_be_asked_one_by_one() -> None:
    options = ["run", "--ask", "documents/50/policy", "chat/25/chunked"]
    asked = serve.asked(serve.parser().parse_args(options))
    assert asked == [[Question("8B", "documents", 50.0, "policy"), Question("8B", "chat", 25.0, "chunked")]]
    for wrong in ("documents/50", "documents/50/nobody", "novels/50/chunked"):
        with pytest.raises(SystemExit):
            serve.parser().parse_args(["run", "--ask", wrong])


@pytest.mark.parametrize("options", [[], ["--one-card"], ["--one-card", "--share", "1/2", "--ask", "chat/25/policy"]])
def test_a_run_on_one_card_goes_by_the_trials_of_that_card(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str]
) -> None:
    from cuda_gctx import Device

    stores: list[Store] = []
    # What is meant for a process of its own.
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    monkeypatch.setattr(serve.faulthandler, "dump_traceback_later", lambda *_, **__: None)
    monkeypatch.setattr(serve, "run", lambda store, *_: stores.append(store) or 0)
    monkeypatch.setattr(sys, "argv", ["serve.py", "run", "--out", str(tmp_path), *options])
    assert serve.main() == 0
    assert stores[0].gpu == (str(Device(0).uuid) if options else None)


@pytest.mark.parametrize("options", [["status"], ["soak"], ["run", "--share", "1/2"]])
def test_what_does_not_compare_contenders_on_one_card_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["serve.py", *options, "--one-card"])
    with pytest.raises(SystemExit):
        serve.main()
    assert "--one-card is for a run" in capsys.readouterr().err


def test_merge_adds_the_results_of_other_folders(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = Store(tmp_path / "gpu1" / store.path.name, {**HEAD, "date": "2026-11-23"})
    add(other, trial())
    monkeypatch.setattr(sys, "argv", ["serve.py", "--out", str(store.path.parent), "merge", str(other.path)])
    for _ in range(2):
        assert serve.main() == 0
        assert len(Store(store.path, HEAD).content["trials"]) == 1


def test_status_shows_what_is_known_and_what_is_next(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add(store, trial())
    before = store.path.read_text()
    options = ["--out", str(store.path.parent), "--contender", "prefill-first", "--load", "chat", "--gap-ms", "50"]
    monkeypatch.setattr(sys, "argv", ["serve.py", "status", *options])
    assert serve.main() == 0
    printed = capsys.readouterr().out
    assert "search not ended" in printed
    assert "next: 8B chat 50 ms prefill-first" in printed
    assert store.path.read_text() == before
    monkeypatch.setattr(sys, "argv", ["serve.py", "predict", *options])
    assert serve.main() == 0
    assert list(Store(store.path, HEAD).content["predictions"]) == ["8B chat 50 ms prefill-first"]


class FakeBench:
    """A bench whose card is the virtual clock."""

    def __init__(self, *arguments: object) -> None:
        self.trials = 0

    def __enter__(self) -> FakeBench:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is open."""

    def card(self, load: object) -> Any:
        executor = VirtualExecutor(COSTS)
        executor.shot = lambda *step: step  # type: ignore[attr-defined]
        executor.prepare = lambda shots: self.prepared(list(shots))  # type: ignore[attr-defined]
        return executor

    def close(self) -> None:
        self.closed = True

    def mixed(self, costs: object) -> tuple[tuple[int, float], ...]:
        return ((4096, 1.0),)

    def knows(self, trial: object) -> bool:
        return self.trials > 0

    def note(self, served: object) -> None:
        self.ended = served

    def check(self) -> dict[str, Any]:
        return {"checked": 1, "wrong": 0, "worst_distance": 0.0}

    def prepared(self, shots: list[Any]) -> None:
        assert shots

    def begin(self) -> None:
        self.trials += 1

    def end(self) -> dict[str, Any]:
        return {**BENCH, **MEMORY}


def test_an_error_of_one_contender_does_not_end_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(FakeBench):
        def begin(self) -> None:
            super().begin()
            if self.trials == 1:
                raise RuntimeError("no memory for a graph")

    monkeypatch.setitem(sys.modules, "serving.bench", SimpleNamespace(Bench=Failing))
    arguments = serve.parser().parse_args(["run", "--load", "documents", "--gap-ms", "50"])
    predict(store, question("streams"), question("prefill-first"), settings=1)
    monkeypatch.setattr(serve, "asked", lambda arguments: [[question("streams"), question("prefill-first")]])
    assert serve.run(store, arguments, until=time.monotonic() + 1e6) == 1
    assert store.content["errors"] == [
        {"trial": store.content["errors"][0]["trial"], "error": "RuntimeError: no memory for a graph", "run": 0}
    ]
    assert {one.trial.question.contender for one in store.outcomes} == {"prefill-first"}
    printed = capsys.readouterr()
    assert "8B documents 50 ms streams failed: RuntimeError: no memory for a graph" in printed.err
    assert "not answered yet: 8B documents 50 ms streams" in printed.out


def test_a_trial_that_is_too_long_leaves_the_time_to_shorter_ones(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = []

    class Loads(FakeBench):
        def card(self, load: Any) -> Any:
            models.append(load.name)
            return super().card(load)

    monkeypatch.setitem(sys.modules, "serving.bench", SimpleNamespace(Bench=Loads))
    long, short = question("prefill-first"), Question("8B", "chat", 50.0, "prefill-first")
    monkeypatch.setattr(serve, "asked", lambda arguments: [[long, short]])
    predict(store, long, short, settings=1)
    store.content["predictions"][str(long)]["starts"] = [6 / 3600] * 3
    assert serve.run(store, serve.parser().parse_args(["run", "--depth", "rate"]), time.monotonic() + 1800) == 0
    assert {row["load"] for row in store.content["trials"]} == {"chat"} == set(models)
    printed = capsys.readouterr().out
    assert "8B documents 50 ms prefill-first" in printed.split("no time is left")[0]
    assert printed.endswith("not answered yet: 8B documents 50 ms prefill-first\n")


def test_a_model_on_which_prompts_take_longer_has_loads_of_its_own() -> None:
    one, other = loads.load_of("documents", "8B"), loads.load_of("documents", "34B")
    assert one.first_token_s == loads.LOADS["documents"].first_token_s
    assert one.requests == loads.LOADS["documents"].requests
    assert (other.requests, other.first_token_s) == (one.requests // 2, 2 * one.first_token_s)
    assert other.sequences <= other.requests


def test_a_trial_that_runs_out_of_time_says_nothing(store: Store) -> None:
    one = trial()
    record = trials.serve(one, COSTS, VirtualExecutor(COSTS), most_seconds=2.0)
    row = {**trials.row_of(one, record), **BENCH, **MEMORY}
    assert row["out_of_time"]
    assert not row["kept"]
    store.add("trials", row)
    assert store.outcomes == []
    checked = {**row, "checked": 0, "wrong": 0}
    assert serve.verdict(checked).startswith("out of time after ")
    assert serve.verdict({**checked, "out_of_time": False}).startswith("not kept after ")


def test_a_trial_does_not_begin_in_time_that_was_taken_by_its_graphs(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0

    class Slow(FakeBench):
        def prepared(self, shots: list[Any]) -> None:
            nonlocal now
            now += 1e6

    monkeypatch.setitem(sys.modules, "serving.bench", SimpleNamespace(Bench=Slow))
    monkeypatch.setattr(serve, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(serve, "asked", lambda arguments: [[question("prefill-first")]])
    predict(store, question("prefill-first"), settings=1)
    assert serve.run(store, serve.parser().parse_args(["run"]), until=1e6) == 0
    assert store.content["trials"] == []
    assert "no time is left" in capsys.readouterr().out


def test_runs_go_on_until_all_is_answered_or_the_time_is_over(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "serving.bench", SimpleNamespace(Bench=FakeBench))
    options = ["run", "--load", "documents", "--gap-ms", "50", "--contender", "prefill-first"]
    arguments = serve.parser().parse_args(options)
    asked = serve.asked(arguments)
    assert [one for group in asked for one in group] == [question("prefill-first")]
    assert serve.run(store, arguments, until=time.monotonic() + 1) == 0
    assert "no time is left" in capsys.readouterr().out
    assert store.outcomes == []
    assert serve.run(store, arguments, until=time.monotonic() + 1e6) == 0
    assert "all questions are answered" in capsys.readouterr().out
    known = report.known(store.content, store.outcomes, question("prefill-first"))
    assert known is not None
    assert known.seeds == 3
    assert Store(store.path, HEAD).outcomes == store.outcomes


def test_mixed_steps_are_measured_with_the_contexts_of_each_load(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loads(FakeBench):
        factor = 1.0

        def card(self, load: Any) -> Any:
            self.factor = {"documents": 1.25, "retrieval": 1.5}[load.name]
            return super().card(load)

        def mixed(self, costs: object) -> tuple[tuple[int, float], ...]:
            return ((4096, self.factor),)

    monkeypatch.setitem(sys.modules, "serving.bench", SimpleNamespace(Bench=Loads))
    of_loads = [Question("8B", load, 1e5, "prefill-first") for load in ("documents", "retrieval")]
    monkeypatch.setattr(serve, "asked", lambda arguments: [of_loads])
    predict(store, *of_loads, settings=1)
    assert serve.run(store, serve.parser().parse_args(["run"]), until=time.monotonic() + 1e6) == 0
    found = {row["load"]: row["mixed"] for row in store.content["trials"]}
    assert {load: tuple(map(tuple, factors)) for load, factors in found.items()} == {
        "documents": ((4096, 1.25),),
        "retrieval": ((4096, 1.5),),
    }


def test_a_run_without_costs_says_what_to_do(store: Store) -> None:
    with pytest.raises(SystemExit, match=r"run 'serve.py costs --model 34B' first"):
        serve.costs_of(store, "34B")


def test_the_memory_of_a_process_is_shown_where_it_was_recorded() -> None:
    soak = {"model": "8B", "seconds": 60.0, "decode_steps": 9, "switches": 2, "checked": 3, "wrong": 0}
    soak |= {"free_bytes": [9 << 20, 4 << 20]}
    assert report.soak_rows({"soaks": [soak]})[1][4:6] == ["at most 5 MiB in a run", "not recorded"]
    later = {**soak, "free_bytes": [9 << 20, 9 << 20], "held_bytes": [5 << 20, 7 << 20]}
    shown = report.soak_rows({"soaks": [soak, later]})[1][4:6]
    assert shown == ["at most 5 MiB in a run", "at most 2 MiB in a run, of 1 runs"]


def test_answers_that_were_checked_in_trials_are_counted() -> None:
    content = {"runs": [], "card": "a card", "sm_count": 132, "driver": "1", "cuda": "13.0"}
    rows = [{"model": "8B", "out_of_time": True, "checked": count, "wrong": count} for count in (1, 0)]
    assert report.head({**content, "trials": rows}).endswith("answers of trials were checked, 1 were wrong.")
    assert "checked" not in report.head({**content, "trials": [{"model": "8B", "out_of_time": True}]})
