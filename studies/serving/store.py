"""The file of results: what was measured when, and written after each trial, so that nothing is lost."""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from serving.loop import Limits
from serving.search import GAPS_MS, Outcome, Question, Trial, revision, under

KIND = "serving"
ROWS = ("trials", "soaks", "errors")
RUNS = ("run", "costs_run")  # which runs a result names, by their numbers
# A trial captures what it lacks, and the next one has that; but its steps, and so the graphs, may be others.
DISTURBED = 3


class Store:
    """The results of one card, as JSON that a later run continues.

    head: card, driver and versions of this run. Costs, trials and soaks name the run they are of by its number.
    """

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self.path = path
        if path.exists():
            self.content: dict[str, Any] = json.loads(path.read_text())
            if self.content["card"] != head["card"] or self.content["cuda"] != head["cuda"]:
                raise ValueError(
                    f"{path} is of {self.content['card']}, CUDA {self.content['cuda']}: use another folder"
                )
        else:
            self.content = _nothing_of(head)
        self._run = {**head, "id": uuid.uuid4().hex}  # cards of one kind may have the same facts
        self.gpu: str | None = None  # the UUID of the card whose trials count; None: those of all

    @property
    def run(self) -> int:
        """The number of this run, which is entered at its first result."""
        if self._run not in self.content["runs"]:
            self.content["runs"].append(self._run)
        return int(self.content["runs"].index(self._run))

    def save(self) -> None:
        """Write the file, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(as_text(self.content))
        os.replace(part, self.path)

    def add(self, kind: str, row: Mapping[str, Any]) -> None:
        """Append a row to "trials", "soaks" or "errors", and save."""
        self.content[kind].append({})
        self.change_last(kind, row)

    def change_last(self, kind: str, row: Mapping[str, Any]) -> None:
        """Write the row that was added last anew, and save."""
        self.content[kind][-1] = {**row, "run": self.run}
        self.save()

    def put_costs(self, model: str, value: Mapping[str, Any]) -> None:
        """Set the costs of a model, and save. Predictions that were made of other costs are dropped."""
        self.content["costs"][model] = {**value, "run": self.run}
        known = self.content["predictions"]
        self.content["predictions"] = {name: one for name, one in known.items() if not name.startswith(f"{model} ")}
        self.save()

    @property
    def outcomes(self) -> list[Outcome]:
        return outcomes_of(self.content if self.gpu is None else of_gpu(self.content, self.gpu))


def as_text(content: Mapping[str, Any]) -> str:
    """Results as JSON, each row on a line of its own."""
    entries = []
    for name, value in content.items():
        if isinstance(value, list):
            text = "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in value) + "\n ]" if value else "[]"
        else:
            text = json.dumps(value, indent=1).replace("\n", "\n ")
        entries.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def merged(first: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The results of processes that began with the same file, or with none: each row once, runs numbered anew.

    Of costs, predictions and rates of the attention that several have, the last one is kept. Raises ValueError for
    results of different cards.
    """
    found = _nothing_of(first)
    for other in (first, *others):
        if (other["card"], other["cuda"]) != (found["card"], found["cuda"]):
            raise ValueError(f"{other['card']} and {found['card']} are different cards: merge the files of one")
        runs = found["runs"]
        _add_new(runs, other["runs"])
        numbers = [runs.index(run) for run in other["runs"]]
        for kind in ROWS:
            _add_new(found[kind], [_renumbered(row, numbers) for row in other[kind]])
        found["costs"] |= {model: _renumbered(one, numbers) for model, one in other["costs"].items()}
        found["predictions"] |= other["predictions"]
        if "attention" in other:
            found["attention"] = _renumbered(other["attention"], numbers)
    return found


def _renumbered(one: Mapping[str, Any], numbers: Sequence[int]) -> dict[str, Any]:
    return {**one, **{key: numbers[one[key]] for key in RUNS if key in one}}


def _nothing_of(head: Mapping[str, Any]) -> dict[str, Any]:
    """The results of a card before any are added."""
    return {**head, "runs": [], "costs": {}, "predictions": {}, **{kind: [] for kind in ROWS}}


def _add_new(found: list[Any], others: Iterable[Any]) -> None:
    for other in others:
        if other not in found:
            found.append(other)


def of_gpu(content: Mapping[str, Any], uuid: str) -> dict[str, Any]:
    """The results without the trials that ran on other cards."""
    return {**content, "trials": [row for row in content["trials"] if row["gpu"] == uuid]}


def trials_of(content: Mapping[str, Any], counts: Callable[[Question], int] = revision) -> list[Mapping[str, Any]]:
    """The trials of a file of results that say something: of contenders as they are now, and not out of time.

    One that failed while graphs were captured on the way is left out, up to DISTURBED times on a card. counts: another
    revision of the contender of a question than the present one.
    """
    found: list[Mapping[str, Any]] = []
    disturbed: Counter[tuple[Trial, str]] = Counter()
    for row in content["trials"]:
        if row["out_of_time"] or row["revision"] != counts((trial := trial_of(row)).question):
            continue
        if not row["kept"] and row["late_captures"] and disturbed[trial, row["gpu"]] < DISTURBED:
            disturbed[trial, row["gpu"]] += 1
            continue
        found.append(row)
    return found


def trial_of(row: Mapping[str, Any]) -> Trial:
    """Which trial a row is of."""
    question = Question(row["model"], row["load"], row["gap_ms"], row["contender"])
    return Trial(question, row["settings"], row["rate"], row["seed"])


def revisions_before(content: Mapping[str, Any]) -> Callable[[Question], int]:
    """The last revision, before the present one, of which there are trials of a question; -1 without any."""
    found: defaultdict[Question, int] = defaultdict(lambda: -1)
    for row in content["trials"]:
        question = trial_of(row).question
        if row["revision"] < revision(question):
            found[question] = max(found[question], row["revision"])
    return found.__getitem__


def outcomes_of(content: Mapping[str, Any], counts: Callable[[Question], int] = revision) -> list[Outcome]:
    """The trials of a file of results, for the search, and what they say of other limits on gaps."""
    rows = trials_of(content, counts)
    own = [Outcome(trial_of(row), row["kept"]) for row in rows]
    return own + [implied for row in rows for implied in _implied(row)]


def _implied(row: Mapping[str, Any]) -> Iterator[Outcome]:
    """The outcomes of the same trial under other limits on gaps.

    All gaps of a kept trial are known. A trial that was not kept ended early: it misses lower limits as well, and every
    limit if first tokens were late.
    """
    trial = trial_of(row)
    gaps_were_kept = row["gaps_kept"] is None or row["gaps_kept"] >= Limits.share
    for gap_ms in GAPS_MS[trial.question.model]:
        other = under(trial, gap_ms)
        if other is None or gap_ms == trial.question.gap_ms:
            continue
        if row["kept"]:
            yield Outcome(other, row["gaps_ms"]["p99"] <= gap_ms, implied=True)
        elif gap_ms < trial.question.gap_ms or gaps_were_kept:
            yield Outcome(other, False, implied=True)


def settings_of(content: Mapping[str, Any], outcomes: Iterable[Outcome], question: Question) -> list[str]:
    """The settings of a question in the order in which they are raced: those that have kept a rate in a trial that was
    run for it, the one that is predicted to be best, then others that were tried, under other limits too, and as
    predicted.
    """
    mine = [one for one in outcomes if one.trial.question == question]
    kept = [one.trial.settings for one in mine if one.kept and not one.implied]
    tried = [one.trial.settings for one in mine]
    predicted = content["predictions"].get(str(question), {"settings": []})["settings"]
    return list(dict.fromkeys([*kept, *predicted[:1], *tried, *predicted]))
