"""The drop-ins have the names and arguments of the releases that were compared last.

``releases.py`` compares the newest releases with the same record every week.
"""

from __future__ import annotations

import inspect
import json
import zipfile
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import cuda_gctx

from . import releases

KNOWN: dict[str, Any] = json.loads(releases.RECORD.read_text())["packages"]
DROP_INS = {
    ("torch", "torch/cuda/green_contexts.py"): "cuda_gctx.compat.torch_green",
    ("flashinfer-python", "flashinfer/green_ctx.py"): "cuda_gctx.compat.flashinfer",
    ("sglang-kernel", "sgl_kernel/spatial.py"): "cuda_gctx.compat.sgl_kernel",
}
# Constructors that their users do not call.
ELSEWHERE = {"SMPartition.__init__"}


@pytest.mark.parametrize(("package", "file"), DROP_INS)
def test_a_drop_in_has_the_names_and_arguments_of_the_release(package: str, file: str) -> None:
    module = import_module(DROP_INS[package, file])
    functions = KNOWN[package]["files"][file]
    assert len(functions) >= 2
    for name, facts in functions.items():
        if name in ELSEWHERE or name.endswith(".*"):
            continue
        found: Any = module
        for part in name.split("."):
            found = inspect.getattr_static(found, part)
        found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        assert releases.arguments_in(facts) <= set(inspect.signature(found).parameters), name


@pytest.mark.parametrize("file", KNOWN["cuda-core"]["files"])
def test_the_package_has_the_names_of_cuda_core(file: str) -> None:
    for name in KNOWN["cuda-core"]["files"][file]:
        assert name.endswith(".*") or name.rpartition(".")[2] in dir(getattr(cuda_gctx, name.partition(".")[0])), name


MODULE = """
LIMIT = 3
_LEAST = 8

class A:
    \"\"\"A class.\"\"\"

    MODE = 1

    def f(self, a, *, b=1):
        \"\"\"Words.\"\"\"
        return self._inner(a)

    def _inner(self, a):
        raise ValueError(_checked(a))

def g(x):
    return x

def _checked(a):
    return max(a, _LEAST)

def _unused(a):
    return a
"""
FILE = "flashinfer/green_ctx.py"


def changes(*replaced: str, file: str = FILE) -> list[str]:
    """Reports the differences after each text of a pair is replaced by the other text."""
    text = MODULE
    for old, new in zip(replaced[::2], replaced[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    before, now = releases.facts_of(file, MODULE), releases.facts_of(file, text)
    return [line.split(": ", 1)[1] for line in releases.differences("flashinfer-python", {file: before}, {file: now})]


def test_the_facts_are_arguments_errors_and_a_hash() -> None:
    facts = releases.facts_of(FILE, MODULE)
    assert [(name, fact.partition(" #")[0]) for name, fact in facts.items()] == [
        ("A.*", "()"),
        ("A.f", "(self, a, b)"),
        ("g", "(x)"),
    ]


def test_a_changed_body_names_the_function_and_the_claim() -> None:
    [line] = changes("return x", "return x + 1")
    assert line == (f"g of {FILE} has another body; check cuda_gctx.compat.flashinfer, docs/drop-ins.md#flashinfer")


@pytest.mark.parametrize(
    ("replaced", "function"),
    [
        (("max(a, _LEAST)", "min(a, _LEAST)"), "A.f"),  # a helper of a helper
        (("_LEAST = 8", "_LEAST = 4"), "A.f"),
        (("raise ValueError", "raise TypeError"), "A.f"),
        (("MODE = 1", "MODE = 2"), "A.*"),
    ],
)
def test_a_changed_helper_or_field_is_a_changed_body(replaced: tuple[str, str], function: str) -> None:
    [line] = changes(*replaced)
    assert line.startswith(f"{function} of {FILE} has another body")


def test_words_formatting_and_what_is_not_used_are_no_difference() -> None:
    assert changes("Words.", "Other words.", "A class.", "Another.", "x\n\ndef _ch", "(x)\n\n\n\ndef _ch") == []
    assert changes("    return a\n", "    return 2 * a\n", "LIMIT = 3", "LIMIT = 4") == []


def test_docstrings_of_stubs_are_compared() -> None:
    [line] = changes("Words.", "Other words.", file="cuda/core/_context.pyi")
    assert line == "A.f of cuda/core/_context.pyi has another text"


def test_other_arguments_and_new_names_are_reported() -> None:
    found = changes("b=1", "c=1", "def g(x)", "def new(x)")
    assert [line.partition(" #")[0] for line in found] == [
        f"A.f of {FILE} was (self, a, b)",
        f"g of {FILE} was (x)",
        f"new of {FILE} was absent, and is (x)",
    ]


def test_only_the_named_function_is_watched_where_names_are_given() -> None:
    assert list(releases.facts_of(FILE, MODULE, ("g",))) == ["g"]


HEADER = """
#ifdef __cplusplus
extern "C" {
#endif
/** Ends all. */
int end(void);
/**
 * Splits; in groups.
 */
int CUDAAPI split(int count,
                  int flags);  // of one device
typedef struct {
    int maxCTAs; /* at most */
    struct { int x; } inner;
} config_t;
/* the policy */
#define POLICY 1
#ifdef __cplusplus
}
#endif
int split2(int maxCTAs);
"""


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("Splits; in groups.", "Splits at once.", ["split"]),
        ("int flags", "long flags", ["split"]),
        ("at most", "at least", ["config_t", "maxCTAs"]),
        ("the policy", "a policy", ["POLICY"]),
        ("#define POLICY 1", "#define POLICY 2", ["POLICY"]),
        ("int split2(int maxCTAs);", "", ["maxCTAs"]),
        ("Ends all.", "Ends one.", []),
        ("\n                  int flags", " int flags", []),
    ],
)
def test_a_declaration_and_its_comment_are_compared(old: str, new: str, names: list[str]) -> None:
    watched = ("split", "config_t", "maxCTAs", "POLICY")
    assert old in HEADER
    before = releases.facts_of("x.h", HEADER, watched)
    now = releases.facts_of("x.h", HEADER.replace(old, new), watched)
    assert before.keys() == set(watched)
    assert [name for name in sorted(before) if before[name] != now[name]] == sorted(names)


def test_the_watch_shows_what_pip_says_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(releases, "RECORD", tmp_path / "releases.json")
    asked: list[tuple[str, ...]] = []

    def pip(*arguments: str) -> str:
        asked.append(arguments)
        if "torch" in arguments:
            raise releases.PipError("ERROR: torch is above a constraint")
        if arguments[0] == "index":
            return f"{arguments[2]} (1.2.3)\nAvailable versions: 1.2.3"
        with zipfile.ZipFile(Path(arguments[arguments.index("-d") + 1]) / "x.whl", "w") as wheel:
            wheel.writestr("sgl_kernel/spatial.py", "def f(a): return a\n")
        return ""

    monkeypatch.setattr(releases, "pip", pip)
    assert releases.main(["--record"]) == 1
    printed = capsys.readouterr().out
    assert "ERROR: torch is above a constraint" in printed
    assert "sglang-kernel: compared nothing, newest 1.2.3: 1 differences" in printed
    for arguments in asked:
        assert arguments[arguments.index("--python-version") + 1] == "3.14"
    written = json.loads(releases.RECORD.read_text())
    assert date.fromisoformat(written["recorded"])
    assert "torch" not in written["packages"]
    # The same releases again: nothing differs, and pip still fails for one of them.
    assert releases.main([]) == 1
    assert "sglang-kernel: compared 1.2.3, newest 1.2.3: 0 differences" in capsys.readouterr().out


def test_a_failure_of_pip_has_its_words() -> None:
    with pytest.raises(releases.PipError, match="unknown command"):
        releases.pip("nothing-like-this")


def test_a_constraint_of_the_machine_hides_no_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONSTRAINT", "old-releases.txt")
    assert "old-releases.txt" not in releases.pip("config", "list")


def test_the_newest_supported_python_is_asked_for() -> None:
    assert releases.newest_python() == "3.14"
