"""The programs of tools: requirements, links, commit messages, the preflight."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..common import needs_cuda_header, tool
from ..conftest import REPOSITORY

requirements, commit_message, links, site = map(tool, ("requirements", "commit_message", "links", "site"))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="this Python cannot read TOML")
def test_requirements_are_those_of_pyproject_toml() -> None:
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert requirements.requirements_of("build") == project["build-system"]["requires"]
    groups = project["dependency-groups"]
    assert {name: requirements.requirements_of(name) for name in groups} == groups
    extras = project["project"]["optional-dependencies"]
    assert requirements.requirements_of("cli") == extras["cli"]
    # An extra that names another one of this package has what that one has: no index knows this name.
    assert requirements.requirements_of("comm") == [*extras["cu13"], *extras["comm"][1:]]


def test_requirements_of_an_unknown_job_are_refused() -> None:
    with pytest.raises(SystemExit, match="no requirements of 'linting'"):
        requirements.requirements_of("linting")


@needs_cuda_header
def test_the_folder_of_the_header_is_found_and_old_headers_are_not(tmp_path: Path) -> None:
    assert (requirements.cuda_include() / "cuda.h").exists()
    header = tmp_path / "nvidia" / "include" / "cuda.h"
    header.parent.mkdir(parents=True)
    header.touch()  # from Python 3.12 on, files that are not there are not listed
    for version, wanted in (("13.3.1", None), ("14.0.0", None), ("13.5.0", header.parent)):
        info = tmp_path / f"nvidia_cuda_runtime-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nvidia-cuda-runtime\nVersion: {version}\n")
        (info / "RECORD").write_text("nvidia/include/cuda.h,,\n")
        assert requirements.cuda_include(str(tmp_path)) == wanted
        shutil.rmtree(info)


def test_the_report_on_english_finds_sentences_of_pages_docstrings_and_messages(tmp_path: Path) -> None:
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text("# What it takes\n\nThe speedup is 1.59 times that of a stream.\n\n```text\n2 times as\n```\n")
    module.write_text('"""Those of a list."""\n\n\ndef f():\n    raise ValueError(f"{f} is asked for")\n')
    english = [sys.executable, str(REPOSITORY / "tools" / "english.py")]
    done = subprocess.run([*english, str(page), str(module)], capture_output=True, text=True, check=True)
    assert [line.rpartition(": ")[2] for line in done.stdout.splitlines()] == [
        "# What it takes",
        "The speedup is 1.59 times that of a stream.",
        "The speedup is 1.59 times that of a stream.",
        "(docstring) Those of a list.",
        "X is asked for",
    ]


def test_the_first_page_of_the_site_leads_to_the_newest_version(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0", "0.10.0rc1", "0.2.0"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").write_text("")
    (tmp_path / "other").mkdir()
    assert site.main([str(tmp_path)]) == 0
    assert site.versions_in(tmp_path) == ["0.10.0", "0.10.0rc1", "0.9.0", "0.2.0"]
    assert 'url=0.10.0/index.html"' in (tmp_path / "index.html").read_text()
    assert links.dead_links(tmp_path) == []


def test_dead_links_of_a_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<p id="top"><a href="a/#one">x</a><a href="#top"><a href="https://example.org/x">'
    )
    (tmp_path / "a" / "index.html").write_text(
        '<h1 id="one"><a href="../index.html#two"><img src="none.svg"><a href="../">'
    )
    assert links.dead_links(tmp_path) == ["a/index.html: ../index.html#two", "a/index.html: none.svg"]
    assert links.main([str(tmp_path)]) == 1


GOOD = [
    "handles: keep entries in their block",
    "tests/house, docs: name the table of a room\n\nA reader looks there first.\n",
    "core: pass streams by reference",
    "core: need no lock for idle blocks",
    "sim: " + "x" * 67,
    "sim: " + "\N{GREEK SMALL LETTER MU}" * 67,  # columns, not bytes
    "docs: correct the address of a page\n\nhttps://" + "x" * 100,
    "Merge branch 'main' into a-branch-whose-name-is-so-long-that-the-subject-has-more-than-72-columns",
    "fixup! handles: a block owns its entry",
    "# a comment before\ncore: leave comments out of messages\n# " + "x" * 100,
    "core: leave diffs out of messages\n\n# ------------------------ >8 ------------------------\n+" + " x" * 100,
]
BAD = {
    "A test of merging is as it was": "must be 'room: imperative verb, noun'",
    "Handles: a block owns its entry": "must be 'room: imperative verb, noun'",
    "handles:a block owns its entry": "must be 'room: imperative verb, noun'",
    "handles: ": "must be 'room: imperative verb, noun'",
    **{
        f"core: {words}": "must begin with a verb after the colon"
        for words in (
            *(
                "what a block owns",
                "that blocks end",
                "of blocks",
                "a block owns its entry",
                "the block owns its entry",
            ),
            *("no block is left", "nothing is left", "fixed blocks", "blocks own entries", "What a block owns"),
        )
    },
    "sim: " + "x" * 68: "has 73 columns, more than 72",
    "sim: end the session.": "must not end with a period",
    "sim: end the session\nbecause it is over": "the second line must be empty",
    "sim: end the session\n\n" + "because " * 10: "1 lines of the body are longer than 72 columns",
}


@pytest.mark.parametrize("message", GOOD)
def test_a_commit_message_of_the_right_form_is_accepted(message: str) -> None:
    assert commit_message.problems_of(message) == []


@pytest.mark.parametrize("message", BAD)
def test_a_commit_message_of_another_form_is_refused_with_what_is_wrong(message: str) -> None:
    [problem] = commit_message.problems_of(message)
    assert BAD[message] in problem


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_runs_the_hook(tmp_path: Path) -> None:
    def git(*words: str) -> subprocess.CompletedProcess[str]:
        options = (
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "-c",
            f"core.hooksPath={REPOSITORY / 'tools' / 'hooks'}",
        )
        return subprocess.run(["git", "-C", tmp_path, *options, *words], capture_output=True, text=True)

    assert git("init", "-q").returncode == 0
    refused = git("commit", "--allow-empty", "-m", "What was wrong")
    assert refused.returncode != 0
    assert "commit message: the subject must be 'room: imperative verb, noun'" in refused.stderr
    accepted = git("commit", "--allow-empty", "-m", "room: test the hook")
    assert accepted.returncode == 0, accepted.stderr


# ---- the preflight


def preflight(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the preflight in a folder, with a stamp in its build folder."""
    return subprocess.run(
        [sys.executable, REPOSITORY / "tools" / "preflight.py", "build/interpreter"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"MAKE_VERSION": "3.81"}, "this is make 3.81, and the Makefile needs GNU make 4 or newer"),
        ({"CXX": "no-such-compiler"}, "there is no C++ compiler no-such-compiler: install g++ 12 or newer, or set CXX"),
        ({"CXX": "false"}, "false does not compile C++20: install g++ 12 or newer, or set CXX"),
    ],
)
def test_preflight_refuses_a_machine_with_one_sentence(
    environment: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    ran = preflight(tmp_path, **environment)
    assert (ran.returncode, ran.stderr.strip()) == (1, sentence)
    assert list(tmp_path.iterdir()) == []


def test_preflight_refuses_an_old_python_before_it_touches_anything(tmp_path: Path) -> None:
    program = "import runpy, sys; sys.version_info = (3, 9, 1); sys.argv = ['preflight.py', 'build/interpreter']; "
    program += f"runpy.run_path({str(REPOSITORY / 'tools' / 'preflight.py')!r}, run_name='__main__')"
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1
    assert "is Python 3.9.1, and the package needs 3.10 or newer" in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_environments_of_another_interpreter_are_removed_and_own_ones_stay(tmp_path: Path) -> None:
    environments = [tmp_path / ".venv", tmp_path / "build" / "tools", tmp_path / "build" / "package"]
    stamp = tmp_path / "build" / "interpreter"
    assert preflight(tmp_path).returncode == 0
    for folder in environments:
        folder.mkdir(parents=True)
    assert preflight(tmp_path, CXX="no-such-compiler").returncode == 0, "a known interpreter is checked no more"
    assert all(folder.is_dir() for folder in environments)
    own = stamp.read_text()
    stamp.write_text("/usr/bin/python3.99 3.99.0\n")
    assert preflight(tmp_path).returncode == 0
    assert not any(folder.exists() for folder in environments)
    assert stamp.read_text() == own
