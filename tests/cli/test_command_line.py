"""``cuda-gctx`` as a whole: what it loads, how it ends, and what a shell can complete."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from subprocess import CompletedProcess
from typing import IO, Any

import click
import pytest
from click.testing import CliRunner, Result

import cuda_gctx
from cuda_gctx.cli._root import root
from cuda_software_driver import library_path

from ..common import run_python
from ..conftest import REPOSITORY

pytestmark = pytest.mark.sim_only

DEVICE_COMMANDS = [["info"], ["sizes"], ["plan", "16", "rest"], ["verify"]]


def run(*arguments: str, **environment: str) -> Result:
    """The command line in this process, on the driver of this process."""
    done = CliRunner().invoke(root, arguments, prog_name="cuda-gctx", env=environment)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def child(*arguments: str, stdout: IO[str] | int = subprocess.PIPE, **environment: str) -> CompletedProcess[str]:
    """The command line as a program."""
    return subprocess.run(
        [sys.executable, "-m", "cuda_gctx.cli", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )


def in_a_terminal(columns: int, *arguments: str) -> str:
    """What the command line prints as a program in a terminal."""
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    subprocess.run(
        [sys.executable, "-m", "cuda_gctx.cli", *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        check=False,
        timeout=120,
        env=environment,
    )
    os.close(terminal)
    output = b""
    while True:
        try:
            output += os.read(main, 65536)
        except OSError:  # the end
            break
    os.close(main)
    return output.decode().replace("\r\n", "\n")


def completed(words: str) -> list[str]:
    """What bash is offered for the last of the words."""
    count = len(words.split(" ")) - 1
    done = run(COMP_WORDS=words, COMP_CWORD=str(count), _CUDA_GCTX_COMPLETE="bash_complete")
    assert done.exit_code == 0, done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


# ---- what it loads


@pytest.mark.parametrize("arguments", [["plan", "16", "rest"], ["doctor"]], ids=" ".join)
def test_a_command_imports_no_framework(arguments: list[str]) -> None:
    code = f"""
import sys
from cuda_gctx.cli import main
sys.argv[1:] = {arguments!r}
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print([name for name in ("torch", "cupy", "numba", "cuda", "numpy", "matplotlib") if name in sys.modules])
"""
    done = run_python(code)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_the_entry_point_loads_neither_click_nor_rich() -> None:
    code = "import sys, cuda_gctx, cuda_gctx.cli; print({'click', 'rich'} & set(sys.modules))"
    assert run_python(code).stdout == "set()\n"


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_packages_it_says_in_one_line_what_to_install(missing: str) -> None:
    done = run_python(f"import sys; sys.modules[{missing!r}] = None; from cuda_gctx.cli import main; main()")
    assert done.returncode == 1
    assert not done.stdout
    assert done.stderr.splitlines() == [
        f"the command line needs {missing}, which is not installed: pip install click rich"
    ]


def test_version_is_that_of_the_package() -> None:
    assert run("--version").stdout == f"cuda-gctx {cuda_gctx.__version__}\n"
    assert child("--version").stdout == f"cuda-gctx {cuda_gctx.__version__}\n"


@pytest.mark.parametrize("command", ["info", "sizes", "plan", "verify", "demo", "tune", "doctor"])
def test_every_command_takes_a_device_and_a_simulated_card(command: str) -> None:
    usage = run(command, "--help").stdout
    assert {"--device", "--profile", "--driver", "--json"} <= set(re.findall(r"(?<!\w)--[a-z]+", usage))


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from commands(command, (*path, name))
            else:
                yield (*path, name), command


def test_every_option_stands_on_the_page_of_the_command_line() -> None:
    page = (REPOSITORY / "docs" / "command-line.md").read_text()
    assert [
        f"{' '.join(path)} {flag}"
        for path, command in commands(root)
        for option in command.params
        if isinstance(option, click.Option)
        for flag in option.opts
        if flag.startswith("--") and not re.search(rf"{flag}\b", page)
    ] == []


def test_no_line_of_the_help_is_cut_and_each_begins_with_an_imperative() -> None:
    for usage in (child("--help", COLUMNS="80").stdout, child("sim", "--help", COLUMNS="80").stdout):
        lines = usage.partition("Commands:\n")[2].splitlines()
        assert lines
        for line in lines:
            summary = line.strip().partition("  ")[2]
            assert re.fullmatch(r"[A-Z].*\w\.", summary.strip()), line
            assert "..." not in summary, line
            assert not summary.split()[0].endswith("s"), line


def test_messages_are_wrapped_at_the_width_of_the_terminal() -> None:
    done = in_a_terminal(60, "plan", "128", "64", "--profile", "h200")
    assert done.startswith("Error: ")
    assert max(map(len, done.splitlines())) <= 60
    assert len(done.splitlines()) > 1


@pytest.mark.parametrize("arguments", [(), ("sim",)], ids=["cuda-gctx", "sim"])
def test_a_group_without_a_command_shows_its_help_as_it_is_laid_out(arguments: tuple[str, ...]) -> None:
    done = in_a_terminal(80, *arguments)
    assert "Commands:\n" in done
    assert done.splitlines()[1] == ""


def test_a_path_is_not_broken_in_a_terminal() -> None:
    done = in_a_terminal(40, "info", "--profile", "h200")
    assert f"CUDA driver 13.0: {library_path()}\n" in done


def test_help_reports_every_command_and_what_the_statuses_mean() -> None:
    done = run("--help")
    assert done.exit_code == 0
    for word in ("info", "sizes", "plan", "verify", "demo", "tune", "doctor", "sim"):
        assert f"\n  {word} " in done.stdout
    assert "Exit status" in done.stdout


# ---- how it ends


# In every run, each command without one of the two.
@pytest.mark.parametrize(
    ("arguments", "driver"),
    [
        pytest.param(words, driver, marks=() if number % 2 == at else pytest.mark.long)
        for number, words in enumerate(DEVICE_COMMANDS)
        for at, driver in enumerate(["/no/such/driver.so", "sim:h200,devices=0"])
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_without_a_driver_or_device_the_status_is_3_and_the_message_says_what_to_do(
    arguments: list[str], driver: str
) -> None:
    done = child(*arguments, CUDA_GCTX_DRIVER=driver)
    assert done.returncode == 3
    assert not done.stdout
    assert "CUDA_GCTX_DRIVER=sim" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_device_that_is_not_there_ends_with_3(sim: Callable[..., Any]) -> None:
    sim("h200", devices=2)
    assert run("sizes", "--device", "1").exit_code == 0
    done = run("sizes", "--device", "2")
    assert done.exit_code == 3
    assert "there is no device 2: the devices of this machine are 0 to 1" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bicycle"], "No such command 'bicycle': choose from run,"),
        (["pln"], "No such command 'pln': did you mean 'plan'?"),
        (["plan"], "Missing argument"),
        (
            ["plan", "some"],
            "invalid request 'some': write a number of SMs (16), a fraction of the device (0.25), or 'rest'",
        ),
        (["plan", "decode=16", "8"], "name all partitions or none of them"),
        (["plan", "a=8", "a=16"], "a different name"),
        (["plan", "rest", "rest"], "request the remaining SMs"),
        (["plan", "1.5"], "a share of a device (a float above 0 and below 1), not 1.5"),
        (["plan", "1.0"], "'1.0' is not a fraction below 1: write 'rest' for all remaining SMs"),
        (["plan", "-5"], "-5 is negative"),
        (["plan", "a=0"], "0 SMs: leave the partition out, or write 'rest' for all remaining SMs"),
        (["plan", "16", "--foo"], "No such option"),
        (["verify", "a=" + "9" * 400], "sms must be an int from 0 to 1000000, not 9"),
        (["plan", "device=8"], "'device' cannot be the name of a partition"),
        (["plan", "8", "--profile", "voodoo"], "unknown card 'voodoo': choose from h200,"),
        (["plan", "8", "--profile", "h200", "--driver", "11.8"], "unknown driver version '11.8': choose from 12.3, "),
        (["plan", "8", "--driver", "13.1"], "add --profile CARD"),
        (["verify", "--svg", "no-such-folder/map.svg"], "directory 'no-such-folder' does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_ends_with_2_and_says_what_is_right(arguments: list[str], says: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split())
    assert not done.stdout


def test_a_machine_that_cannot_be_simulated_is_wrong_usage() -> None:
    done = child("info", CUDA_GCTX_DRIVER="sim:voodoo")
    assert done.returncode == 2
    assert "no card 'voodoo' is modelled" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["sizes"], ["plan", "8"], ["verify"]], ids=lambda words: words[0])
def test_a_driver_that_is_too_old_is_a_no(arguments: list[str]) -> None:
    done = run(*arguments, "--profile", "h200", "--driver", "12.3")
    assert done.exit_code == 1
    assert done.stderr == "Error: green contexts need CUDA driver 12.4 or newer; this driver is 12.3\n"


def test_an_error_of_the_driver_is_a_message(sim: Callable[..., Any]) -> None:
    sim("h200").fail("cuGreenCtxCreate")
    done = run("verify")
    assert done.exit_code == 1
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stderr


def test_interrupted_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cuda_gctx.cli.plan.plan_layout", interrupted)
    done = run("plan", "8")
    assert done.exit_code == 130
    assert done.stderr == "Error: interrupted\n"


@pytest.mark.parametrize("module", ["rich", "cuda_gctx.cli.plan"])
def test_interrupted_while_modules_are_imported_is_130_too(module: str) -> None:
    done = run_python(
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            raise KeyboardInterrupt\n"
        "from cuda_gctx.cli import main\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "sys.argv[1:] = ['plan', '8']\n"
        "main()"
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Error: interrupted\n")


@pytest.mark.parametrize("arguments", [["sim", "profiles"], ["sim", "path"], ["info"]], ids=" ".join)
def test_a_standard_output_that_is_closed_is_no_traceback(arguments: list[str]) -> None:
    command = shlex.join([sys.executable, "-m", "cuda_gctx.cli", *arguments])
    done = subprocess.run(["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert "Traceback" not in done.stderr


def test_a_mistake_of_the_program_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuda_gctx.cli.plan.plan_layout", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("plan", "8")


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [
        pytest.param(words.split(), "1" * unbuffered, marks=() if number % 2 == unbuffered else pytest.mark.long)
        for number, words in enumerate(
            ["info", "doctor", "plan 16 rest --json", "sim profiles", "--help", "plan --help"]
        )
        for unbuffered in (False, True)
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_standard_output_that_is_full_is_one_message(arguments: list[str], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = child(*arguments, stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    assert done.stderr == "Error: cannot write the standard output: No space left on device\n"


def error_of(done: Result | CompletedProcess[str]) -> dict[str, Any]:
    """The error in the document on the standard output, which must be the whole of it."""
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["version"] == cuda_gctx.__version__
    return document


JSON_ERRORS = [
    (["plan", "--json"], 2, "Missing argument"),
    (["plan", "some", "--json"], 2, "invalid request 'some'"),
    (["plan", "8", "--json", "--foo"], 2, "No such option"),
    (["info", "--json", "--device"], 2, "requires an argument"),
    (["sizes", "--json", "--profile", "voodoo"], 2, "unknown card 'voodoo'"),
    (["verify", "--json", "16", "--svg", "no-such-folder/map.svg"], 2, "does not exist"),
    (["mps", "16", "200", "--json"], 1, "does not fit"),
    (["sizes", "--json", "--device", "7"], 3, "there is no device 7"),
    (["demo", "--json", "--device", "7"], 3, "there is no device 7"),
    (["info", "--json", "--device", "7"], 3, "there is no device 7"),
    (["tune", "no_such_module:work", "--json"], 2, "no module named 'no_such_module'"),
    (["trace", "--json", "--", "/no/such/program"], 127, "cannot run /no/such/program"),
    (["doctor", "--json", "--driver", "13.1"], 2, "add --profile CARD"),
]


@pytest.mark.parametrize(
    ("arguments", "status", "says"), JSON_ERRORS, ids=[" ".join(arguments) for arguments, *_ in JSON_ERRORS]
)
def test_an_error_with_json_is_a_document(
    arguments: list[str], status: int, says: str, sim: Callable[..., Any]
) -> None:
    sim("h200")
    done = run(*arguments)
    document = error_of(done)
    assert done.exit_code == document["error"]["status"] == status
    assert says in document["error"]["message"]
    assert document["command"] == arguments[0]
    assert document["error"]["message"] in done.stderr


def test_every_command_with_json_has_its_errors_as_documents() -> None:
    unknown = {}
    for path, command in commands(root):
        if any("--json" in option.opts for option in command.params):
            done = run(*path, "--json", "--no-such-option")
            unknown[" ".join(path)] = json.loads(done.stdout)["command"]
    assert {"plan", "trace", "tune", "sim profiles"} <= unknown.keys()
    assert [path for path, named in unknown.items() if path != named] == []


def test_without_a_driver_the_document_says_so() -> None:
    done = child("info", "--json", CUDA_GCTX_DRIVER="/no/such/driver.so")
    assert done.returncode == 3
    assert error_of(done)["error"]["status"] == 3


def test_interrupted_with_json_is_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cuda_gctx.cli.plan.plan_layout", interrupted)
    assert error_of(run("plan", "8", "--json"))["error"] == {"message": "interrupted", "status": 130}


def test_a_negative_answer_is_one_document_without_an_error(sim: Callable[..., Any]) -> None:
    sim("h200")
    done = run("plan", "16", "200", "--json")
    assert done.exit_code == 1
    document = error_of(done)
    assert document["fits"] is False
    assert "error" not in document


def test_json_that_a_traced_program_takes_is_no_json_of_trace(sim: Callable[..., Any]) -> None:
    sim("h200")
    assert not run("trace", "/no/such/program", "--json").stdout


# ---- what it prints


@pytest.mark.parametrize("arguments", [*DEVICE_COMMANDS, ["doctor"]], ids=lambda words: words[0])
def test_what_is_simulated_says_so(arguments: list[str], sim: Callable[..., Any]) -> None:
    sim("h200")
    assert "(simulated)" in run(*arguments).stdout
    assert "(simulated)" in run(*arguments, "--json").stdout


@pytest.mark.parametrize("arguments", [*DEVICE_COMMANDS, ["doctor"]], ids=lambda words: words[0])
def test_json_is_one_document_that_names_its_command(arguments: list[str], sim: Callable[..., Any]) -> None:
    sim("h200")
    done = run(*arguments, "--json")
    document = json.loads(done.stdout)
    assert document["command"] == arguments[0]
    assert document["version"] == cuda_gctx.__version__
    assert not done.stderr


@pytest.mark.parametrize(
    "arguments", [["doctor"], pytest.param(["verify"], marks=pytest.mark.long)], ids=lambda words: words[0]
)
def test_colours_are_for_terminals_that_want_them(arguments: list[str]) -> None:
    def coloured(**environment: str) -> bool:
        return "\x1b[3" in child(*arguments, **environment).stdout

    assert not coloured()
    assert coloured(FORCE_COLOR="1", TERM="xterm-256color")
    assert not coloured(FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="1")


def test_nothing_is_wrapped_where_no_person_reads() -> None:
    done = child("doctor", COLUMNS="20", CUDA_VISIBLE_DEVICES="0," + "1," * 100)
    [line] = [line for line in done.stdout.splitlines() if line.split()[1:2] == ["CUDA_VISIBLE_DEVICES"]]
    assert "lists 101, but 1 are visible" in line


# ---- completion


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("cuda-gctx pl", ["plan"]),
        ("cuda-gctx plan --prof", ["--profile"]),
        ("cuda-gctx plan --profile h", ["h200", "h100"]),
        ("cuda-gctx verify --profile b200 --driver 12.", [f"12.{minor}" for minor in range(3, 10)]),
        ("cuda-gctx plan 16 re", ["rest"]),
        ("cuda-gctx plan decode=16 prefill=", ["prefill=rest"]),
        ("cuda-gctx sim p", ["path", "profiles"]),
        ("cuda-gctx sim run --gpu b", ["b200"]),
        ("cuda-gctx sim run --g", ["--gpu"]),
        ("cuda-gctx sim run --gpu b200 --d", ["--driver", "--devices"]),
        ("cuda-gctx sim run -- python --", []),
    ],
)
def test_a_shell_can_complete(words: str, offered: list[str]) -> None:
    assert completed(words) == offered


@pytest.mark.parametrize("command", ["run", "profiles", "explain", "path"])
def test_the_options_of_the_software_driver_that_are_offered_are_those_it_has(command: str) -> None:
    usage = run("sim", command, "--help").stdout
    assert set(completed(f"cuda-gctx sim {command} --")) == set(re.findall(r"(?<!\w)--[a-z]+", usage))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    done = run(_CUDA_GCTX_COMPLETE=f"{shell}_source")
    assert done.exit_code == 0, done.stderr
    assert "cuda-gctx" in done.stdout


def test_a_program_completes_too() -> None:
    words = "cuda-gctx pl"
    assert child(COMP_WORDS=words, COMP_CWORD="1", _CUDA_GCTX_COMPLETE="bash_complete").stdout == "plain,plan\n"


NOT_INSTALLED = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *package: None if name == "cuda_software_driver" else find(name, *package)
from cuda_gctx.cli import main
sys.argv[0] = "cuda-gctx"
main()
"""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["sim", "profiles"],
            "this needs the software driver, which is not installed: run pip install ./software_driver",
        ),
        (["info", "--profile", "h200"], "this needs the software driver, which is not installed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_without_the_software_driver_commands_say_how_to_install_it(arguments: list[str], says: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_GCTX_DRIVER"}
    done = subprocess.run(
        [sys.executable, "-c", NOT_INSTALLED, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert says in done.stderr
    assert "pip install ./software_driver" in done.stderr
    assert "Traceback" not in done.stderr
