"""The command line of the software driver: the path of the library, runs of commands, and the output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cuda_software_driver as sim

from .common import CUDA_INCLUDE, HARDWARE, needs_cuda_header

ASK = """
from cuda.bindings import driver
driver.cuInit(0)
print(driver.cuDriverGetVersion()[1], driver.cuDeviceGetName(99, 0)[1])
"""


def program(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=60)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return program("-m", "cuda_software_driver", *arguments)


def test_path_prints_the_folder_of_the_library() -> None:
    done = command("path")
    assert done.returncode == 0
    assert done.stdout == sim.library_folder() + "\n"
    assert (Path(done.stdout.strip()) / "libcuda.so.1").is_file()


def test_run_gives_any_command_the_machine_asked_for() -> None:
    done = command("run", "--gpu", "b200", "--driver", "13.1", "--", sys.executable, "-c", ASK)
    assert done.returncode == 0, done.stderr
    version, name = done.stdout.split(maxsplit=1)
    assert version == "13010"
    assert "B200 (simulated)" in name
    assert "running on a simulated machine" in done.stderr


def test_run_ends_as_its_command_ends() -> None:
    assert command("run", "--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7


def test_run_keeps_the_rest_of_the_loaders_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    done = command("run", "--", sys.executable, "-c", "import os; print(os.environ['LD_LIBRARY_PATH'])")
    assert done.stdout.strip() == os.pathsep.join([sim.library_folder(), "/somewhere"])


def test_run_gives_its_command_the_control_program_of_mps() -> None:
    done = command("run", "--", "sh", "-c", "echo get_server_list | nvidia-cuda-mps-control")
    assert (done.returncode, "Cannot find MPS control daemon process" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["run", "--"], 2, "no command to run"),
        (["run", "--", "no-such-command-anywhere"], 127, "cannot run no-such-command-anywhere"),
        (["run", "--gpu", "voodoo", "--", "true"], 2, "no card 'voodoo' is modelled: known are"),
        (["run", "--driver", "13.9", "--", "true"], 2, "13.9"),
        (["dance"], 2, "invalid choice"),
        ([], 2, "required"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_done_is_said_and_is_in_the_status(arguments: list[str], status: int, says: str) -> None:
    done = command(*arguments)
    assert done.returncode == status
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_help_names_the_command() -> None:
    assert command("--help").stdout.startswith("usage: python -m cuda_software_driver ")


def test_neither_click_nor_rich_is_needed() -> None:
    code = "import sys; sys.modules['click'] = sys.modules['rich'] = None\n"
    code += "from cuda_software_driver.__main__ import main; raise SystemExit(main(['profiles']))"
    assert program("-c", code).returncode == 0


def test_json_reports_the_same_and_says_that_it_is_simulated() -> None:
    cards = json.loads(command("profiles", "--json").stdout)
    assert cards["simulated"] is True
    assert [card["key"] for card in cards["profiles"]] == [
        line.split()[0] for line in command("profiles").stdout.splitlines()[1:]
    ]
    behaviours = json.loads(command("explain", "--json").stdout)["behaviours"]
    assert len(behaviours) == len(command("explain").stdout.splitlines()) - 2
    known = json.loads(command("instructions", "--json").stdout)["instructions"]
    lines = command("instructions").stdout.splitlines()[2:]
    assert [one["name"] for one in known] == [line.split()[0] for line in lines]
    assert {one["name"] for one in known if not one["exact"]} >= {"sin", "ex2", "rsqrt"}
    assert json.loads(command("path", "--json").stdout)["path"] == sim.library_folder()


def test_explain_tags_every_behaviour_with_where_it_is_known_from() -> None:
    done = command("explain")
    assert done.returncode == 0
    head, meaning, *lines = done.stdout.splitlines()
    assert "(simulated)" in head
    assert "driver 13.0" in meaning
    tags = [line[1:11].strip() for line in lines]
    assert set(tags) == {"recorded", "timed", "documented", "assumed"}
    assert len(lines) > 80
    assert len(set(lines)) == len(lines)


def behaviours(known: str) -> list[dict[str, str]]:
    found = json.loads(command("explain", "--json").stdout)["behaviours"]
    return [entry for entry in found if entry["known"] == known]


def test_what_is_recorded_is_in_a_section_of_a_recording() -> None:
    sections: set[str] = set()
    for path in HARDWARE.glob("*.json"):
        recording = json.loads(path.read_text())
        sections |= recording.keys() | {f"misuse.{name}" for name in recording["misuse"]}
    assert [entry for entry in behaviours("recorded") if entry["source"] not in sections] == []


def test_what_is_timed_is_in_a_recording_of_times() -> None:
    times = json.loads((HARDWARE / "times" / "h200-driver-13.0.json").read_text())
    assert [entry for entry in behaviours("timed") if entry["source"] not in times] == []


@needs_cuda_header
def test_what_is_documented_is_in_the_header_word_by_word() -> None:
    assert CUDA_INCLUDE is not None
    text = re.sub(r"\n\s*\*( |/)?", " ", (CUDA_INCLUDE / "cuda.h").read_text())
    text = re.sub(r"\s+", " ", re.sub(r"\\p |\\ref |::", "", text))
    # The newest header has no sentences about drivers before it.
    current = [entry for entry in behaviours("documented") if " to 1" not in entry["drivers"]]
    assert [entry for entry in current if entry["source"] not in text] == []


def test_what_is_assumed_names_no_source() -> None:
    assert [entry for entry in behaviours("assumed") if entry["source"]] == []


def test_what_was_not_recorded_is_not_called_so() -> None:
    # One machine was recorded, with driver 13.0: what newer drivers alone do cannot be known from it.
    newer = [line for line in command("explain").stdout.splitlines() if "(13.1 and" in line or "(13.4 and" in line]
    assert newer
    assert not [line for line in newer if line.startswith("[  recorded]")]


def test_profiles_say_that_they_are_simulated_and_whether_their_layout_is_known() -> None:
    done = command("profiles")
    assert done.returncode == 0
    head, *rows = done.stdout.splitlines()
    assert head.split()[-1] == "layout"
    assert all("(simulated)" in row and row.split()[-1] in {"recorded", "assumed"} for row in rows)
    assert [row.split()[0] for row in rows if row.split()[-1] == "recorded"] == ["h200", "h100"]
    assert max(map(len, (head, *rows))) <= 80


def test_the_driver_versions_that_are_listed_are_those_that_can_be_simulated() -> None:
    def can_be(version: str) -> bool:
        try:
            with sim.session("h200", driver=version):
                return True
        except ValueError:
            return False

    every = [f"{major}.{minor}" for major in (11, 12, 13, 14) for minor in range(10)]
    assert [version for version in every if can_be(version)] == sim.driver_versions()


def test_every_answer_of_the_control_interface_says_simulated() -> None:
    with sim.session("h200") as machine:
        assert machine.machine()["simulated"]
        assert machine.faults()["simulated"]
        assert "(simulated)" in repr(machine)
        assert "(simulated)" in str(machine.ledger())
        assert "(simulated)" in json.dumps(machine.machine())
