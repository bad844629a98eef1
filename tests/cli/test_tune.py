"""``cuda-gctx tune``: which work it takes, what it asks the tuner, and what becomes of the report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import cuda_gctx.tune
from cuda_gctx import Device, Layout
from cuda_gctx.cli import _output
from cuda_gctx.tune import Report, TailLatency, Throughput

from .test_command_line import child, run

pytestmark = pytest.mark.sim_only

WORK = """
import functools
def product(stream): ...
def sigmoid(stream): ...
def work(): return {"prefill": product, "decode": sigmoid}
def nothing(): return None
def misnamed(): return {"device": product, "decode": sigmoid}
def talkative(): print("made"); return work()
limit = 3
class again:
    product = product
    device = product
    partial = functools.partial(product)
class Decode:
    def __call__(self, stream): ...
decode = Decode()
one, other = lambda stream: ..., lambda stream: ...
"""


SPINNING_WORK = """
from cuda_gctx.tune import spin
def wide(stream): spin(stream, 264, 100_000)
def narrow(stream): spin(stream, 8, 100_000)
def broken(stream): raise RuntimeError("out of order")
def ending(stream): raise SystemExit(7)
"""


TALKATIVE_WORK = """
import ctypes, os
from cuda_gctx.tune import spin
os.write(1, b"imported\\n")
def part(blocks):
    def enqueue(stream):
        os.write(1, b"called\\n")
        spin(stream, blocks, 100_000)
    return enqueue
def work():
    os.system("echo made by another program")
    print("made by Python")
    ctypes.CDLL(None).printf(b"made by C\\n")
    return {"wide": part(264), "narrow": part(8)}
"""


@dataclass
class StandInReport:
    complete: bool = True

    def to_json(self) -> str:
        return json.dumps({"complete": self.complete})

    def svg(self) -> str:
        return "a picture"

    def html(self) -> str:
        return "a page"

    def __str__(self) -> str:
        return "the table of the report"


@dataclass
class StandInTuner:
    """Plays the tuner: notes what it was asked, and answers at once or is interrupted."""

    interrupted: bool = False
    asked: dict[str, Any] = field(default_factory=dict)

    def overlap(self, *, device: Device, objective: object, budget_s: float, **work: Any) -> StandInReport:
        self.asked = {"device": device, "objective": objective, "budget_s": budget_s, **work}
        try:
            if self.interrupted:
                signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return StandInReport(complete=False)
        return StandInReport()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The current folder, from which modules can be imported for the length of the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("my_work", "needy_work", "spinning_work", "package", "package.my_work"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, folder: Path) -> StandInTuner:
    stand_in = StandInTuner()
    monkeypatch.setitem(vars(cuda_gctx.tune), "overlap", stand_in.overlap)
    (folder / "my_work.py").write_text(WORK)
    return stand_in


def names_of_work(tuner: StandInTuner) -> dict[str, str]:
    return {name: asked.__name__ for name, asked in tuner.asked.items() if hasattr(asked, "__name__")}


def test_one_function_returns_the_work_by_name(dev: Device, tuner: StandInTuner) -> None:
    done = run("tune", "my_work:work")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "the table of the report\n"
    assert names_of_work(tuner) == {"prefill": "product", "decode": "sigmoid"}
    assert (tuner.asked["device"], tuner.asked["objective"]) == (dev, "makespan")


@pytest.mark.parametrize(
    "names",
    [("product", "sigmoid"), ("one", "other"), ("decode", "again.partial")],
    ids=["functions", "lambdas", "other callables"],
)
def test_several_functions_are_the_work_under_the_names_they_were_given(
    dev: Device, tuner: StandInTuner, names: tuple[str, ...]
) -> None:
    done = run("tune", *(f"my_work:{name}" for name in names))
    assert done.exit_code == 0, done.stderr
    assert tuner.asked.keys() - {"device", "objective", "budget_s"} == {name.split(".")[-1] for name in names}


def test_functions_are_looked_up_in_modules_of_packages(dev: Device, tuner: StandInTuner, folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "my_work.py").rename(folder / "package" / "my_work.py")
    assert run("tune", "package.my_work:product", "package.my_work:again.device").exit_code == 1
    assert run("tune", "package.my_work:product", "package.my_work:sigmoid").exit_code == 0


@pytest.mark.parametrize(
    ("options", "objective"),
    [
        (["--throughput", "decode=8,prefill=1"], Throughput(decode=8, prefill=1)),
        (["--throughput", "decode=8, prefill = 1"], Throughput(decode=8, prefill=1)),
        (["--tail-latency", "decode"], TailLatency("decode")),
        (["--tail-latency", "decode", "--quantile", "0.5"], TailLatency("decode", 0.5)),
    ],
)
def test_the_objective_and_the_limits_reach_the_tuner(
    sim: Callable[..., Any], tuner: StandInTuner, options: list[str], objective: object
) -> None:
    sim("h200", devices=2)
    assert run("tune", "my_work:work", "--budget", "3", "--device", "1", *options).exit_code == 0
    assert (tuner.asked["objective"], tuner.asked["budget_s"]) == (objective, 3.0)
    assert tuner.asked["device"] == Device(1)


def test_the_report_goes_where_it_is_wanted(dev: Device, tuner: StandInTuner, folder: Path) -> None:
    done = run("tune", "my_work:work", "--json", "--out", "report.json", "--svg", "report.svg", "--html", "report.html")
    document = json.loads(done.stdout)
    assert document["report"] == json.loads((folder / "report.json").read_text()) == {"complete": True}
    assert document["device"]["name"] == dev.name
    assert (folder / "report.svg").read_text() == "a picture"
    assert (folder / "report.html").read_text() == "a page"


def test_what_the_work_prints_comes_before_the_report(dev: Device, tuner: StandInTuner) -> None:
    assert run("tune", "my_work:talkative").stdout == "made\nthe table of the report\n"


def test_what_the_work_prints_in_any_way_is_kept_out_of_the_document(folder: Path) -> None:
    (folder / "talkative_work.py").write_text(TALKATIVE_WORK)
    done = child("tune", "talkative_work:work", "--budget", "1", "--json", PYTHONUNBUFFERED="")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["command"] == "tune"
    assert set(done.stderr.splitlines()) == {
        "imported",
        "called",
        "made by another program",
        "made by Python",
        "made by C",
    }


def test_the_document_is_clean_where_nobody_reads_the_standard_error(folder: Path) -> None:
    (folder / "talkative.py").write_text(TALKATIVE_WORK)
    code = "import os, sys; os.close(2); os.execv(sys.executable, sys.argv[1:])"
    tune = [sys.executable, "-m", "cuda_gctx.cli", "tune", "talkative:work", "--budget", "1", "--json"]
    environment = {**os.environ, "CUDA_GCTX_DRIVER": "sim"}
    done = subprocess.run([sys.executable, "-c", code, *tune], cwd=folder, env=environment, stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert json.loads(done.stdout)["command"] == "tune"


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_a_file_that_cannot_be_written_takes_nothing_else_away(
    dev: Device, tuner: StandInTuner, folder: Path, form: list[str]
) -> None:
    done = run("tune", "my_work:work", "--out", "/dev/full", "--svg", "report.svg", *form)
    assert done.exit_code == 1
    assert done.stderr == "Error: cannot write '/dev/full': No space left on device\n"
    assert ("complete" if form else "the table of the report") in done.stdout
    assert (folder / "report.svg").read_text() == "a picture"


def test_a_picture_that_cannot_be_written_takes_nothing_else_away(
    dev: Device, tuner: StandInTuner, folder: Path
) -> None:
    (folder / "report.svg").symlink_to("/dev/full")
    done = run("tune", "my_work:work", "--out", "report.json", "--svg", "report.svg")
    assert done.exit_code == 1
    assert done.stderr == "Error: cannot write 'report.svg': No space left on device\n"
    assert done.stdout == "the table of the report\n"
    assert json.loads((folder / "report.json").read_text()) == {"complete": True}


def test_a_report_that_cannot_be_printed_is_written(folder: Path) -> None:
    (folder / "spinning_work.py").write_text(SPINNING_WORK)
    with open("/dev/full", "w") as full:
        done = child(
            "tune", "spinning_work:wide", "spinning_work:narrow", "--budget", "1", "--out", "report.json", stdout=full
        )
    assert done.returncode == 1
    assert done.stderr == "Error: cannot write the standard output: No space left on device\n"
    assert Report.from_json((folder / "report.json").read_text())


def test_ctrl_c_shows_what_was_measured_and_ends_with_130(dev: Device, tuner: StandInTuner, folder: Path) -> None:
    tuner.interrupted = True
    handler = signal.getsignal(signal.SIGINT)
    done = run("tune", "my_work:work", "--out", "report.json")
    assert done.exit_code == 130
    assert done.stdout == "the table of the report\n"
    assert "these are the results so far" in done.stderr
    assert json.loads((folder / "report.json").read_text()) == {"complete": False}
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["my_work"], 2, "write MODULE:FUNCTION"),
        (["no_such_module:work"], 2, "no module named 'no_such_module' in this folder"),
        (["my_work:play"], 2, "my_work has no play"),
        (["my_work:limit"], 2, "is not a function: its type is int"),
        (["my_work:product", "my_work:again.product"], 2, "the same name"),
        (["my_work:product", "my_work:again.device"], 1, "'device' cannot be the name of a part"),
        (["my_work.py:work"], 2, "'my_work.py' is not a module name: write it like my_work:work"),
        (["./my_work.py:work"], 2, "like my_work:work"),
        ([".my_work:work"], 2, "like my_work:work"),
        (["some/folder/my_work:work"], 2, "like some.folder.my_work:work"),
        (["./:work"], 2, "like my_module:work"),
        ([".py:work"], 2, "like my_module:work"),
        (["my_work:product"], 2, "my_work:product takes arguments: name two or more parts"),
        (["my_work:nothing"], 1, "must return the parts: a mapping of two or more names"),
        (["my_work:misnamed"], 1, "'device' cannot be the name of a part"),
        (["my_work:work", "--throughput", "decode"], 2, "invalid mix 'decode'"),
        (["my_work:work", "--throughput", "decode=8, decode=9"], 2, "names a part twice"),
        (["my_work:work", "--throughput", "decode=0,prefill=1"], 2, "decode must be an int from 1"),
        (
            ["my_work:work", "--throughput", "decode=2"],
            2,
            "must have a number of calls for each part; the parts are prefill, decode",
        ),
        (
            ["my_work:work", "--tail-latency", "encode"],
            2,
            "no part has this name; the parts are prefill, decode",
        ),
        (["my_work:work", "--tail-latency", "decode", "--throughput", "decode=1"], 2, "are mutually exclusive"),
        (["my_work:work", "--quantile", "0.5"], 2, "--quantile needs --tail-latency"),
        (["my_work:work", "--out", "nowhere/report.json"], 2, "directory 'nowhere' does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_tuned_is_said_before_anything_is_measured(
    dev: Device, tuner: StandInTuner, arguments: list[str], status: int, says: str
) -> None:
    done = run("tune", *arguments)
    assert done.exit_code == status
    assert says in " ".join(done.stderr.split())
    assert not tuner.asked


def test_a_module_that_cannot_import_what_it_needs_is_reported(dev: Device, tuner: StandInTuner, folder: Path) -> None:
    (folder / "needy_work.py").write_text("import no_such_framework\n")
    done = run("tune", "needy_work:work")
    assert done.exit_code == 1
    assert "needy_work cannot be imported: No module named 'no_such_framework'" in done.stderr


def test_the_report_is_wrapped_at_the_width_of_the_terminal_and_its_tables_between_cells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("FORCE_COLOR", "1")
    _output.show_report("- a reason in more than thirty columns\n\nplan     step     a cell that is 1.5 us")
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "- a reason in more than thirty",
        "  columns",
        "",
        "plan     step",
        "    a cell that is 1.5 us",
    ]


@pytest.mark.parametrize("card", ["h200", "b200"])
def test_work_can_be_tuned_on_a_simulated_card(folder: Path, card: str) -> None:
    (folder / "spinning_work.py").write_text(SPINNING_WORK)
    done = run("tune", "spinning_work:wide", "spinning_work:narrow", "--budget", "1", "--profile", card)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith(("choice: ", "undecided; "))
    assert f"NVIDIA {card.upper()} (simulated)" in done.stdout


@pytest.fixture
def spinning(sim: Callable[..., Any], folder: Path) -> None:
    sim("h200", driver="13.0")
    (folder / "spinning_work.py").write_text(SPINNING_WORK)


def test_what_the_tuner_refuses_is_a_message(spinning: None) -> None:
    done = run("tune", "spinning_work:wide", "spinning_work:narrow", "--budget", "0.000001")
    assert done.exit_code == 1
    assert "increase it" in done.stderr


def test_what_the_package_refuses_beneath_the_tuner_is_a_message(
    dev: Device, tuner: StandInTuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(cuda_gctx.tune), "overlap", lambda **_: Layout.of({"no name": 8}))
    done = run("tune", "my_work:work")
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: 'no name' cannot be the name of a partition")


def test_an_error_of_the_work_keeps_its_traceback(spinning: None) -> None:
    done = run("tune", "spinning_work:wide", "spinning_work:broken")
    assert done.exit_code == 1
    assert 'spinning_work.py", line' in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Error: broken failed")
    assert "cuda_gctx/cli" not in done.stderr


def test_work_that_ends_the_program_is_an_error_of_the_work(spinning: None) -> None:
    done = run("tune", "spinning_work:wide", "spinning_work:ending")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("Error: ending failed (alone): SystemExit: 7")


def test_the_tuner_itself_is_asked_as_it_wants(spinning: None, folder: Path) -> None:
    done = run("tune", "spinning_work:wide", "spinning_work:narrow", "--budget", "1", "--json", "--out", "report.json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    report = Report.from_json((folder / "report.json").read_text())
    assert json.loads(report.to_json()) == document["report"]
    assert set(report.best.parts) == {"wide", "narrow"}
    assert "(simulated)" in report.device
