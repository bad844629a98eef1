"""Reports sentences of pages, docstrings and messages that break the mechanical rules of the project's English.

    python tools/english.py           counts by rule, and the files with most findings
    python tools/english.py FILE...   each finding in these files

The rules are hints: a sentence may have a reason. So the report fails nothing.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from words import REPOSITORY, pages_of_users, prose_of

MOST_WORDS = 22
RULES = {
    "a heading names a task or a noun": r"^#+ (?:What|That|Those|Whether|How it)\b",
    "a docstring begins with a verb or its noun": r"^\(docstring\) (?:What|Whether|That|Of|Those|Where|As|By)\b",
    "repeat the noun": r"\b(?:that of|those of|of (?:its|their) own|the former|the latter)\b",
    "name who acts": r"\b(?:is|are|was|were) (?:asked|told|made|found|given|taken)\b",
    "say what is true": r"\b(?:no other|not another|none of|nothing else|nothing but)\b",
    "a ratio is 1.6x": r"\b\d+(?:\.\d+)? times (?:as|that|those|the)\b",
    "one comma-and in a sentence": r", and [^.;:]*, and ",
}


def sentences(prose: str) -> Iterator[str]:
    """The headings and sentences of prose; items of lists stand for themselves."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-#*\d][ .])", prose):
        text = " ".join(paragraph.split())
        yield from filter(None, re.split(r"(?<=[.!?:;])\s+(?=[A-Z`*\[]|[\w, ]+: )", text))


def docstrings(source: str) -> Iterator[str]:
    """The docstrings of a module in Python, without their examples."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
            text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
            yield f"(docstring) {text}"


def messages(source: str) -> Iterator[str]:
    """The messages of the errors that a module raises."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for given in node.exc.args[:1]:
                parts = given.values if isinstance(given, ast.JoinedStr) else [given]
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)


def findings(file: Path) -> Iterator[tuple[str, str]]:
    """The rules that sentences of a file break."""
    text = file.read_text()
    said = [prose_of(text)] if file.suffix == ".md" else [*docstrings(text), *messages(text)]
    for sentence in (each for prose in said for each in sentences(prose)):
        for rule, pattern in RULES.items():
            if re.search(pattern, sentence):
                yield rule, sentence
        if len(sentence.split()) > MOST_WORDS:
            yield f"at most {MOST_WORDS} words", sentence


def _name(file: Path) -> str:
    return str(file.relative_to(REPOSITORY) if file.is_relative_to(REPOSITORY) else file)


def main(names: list[str]) -> None:
    files = [Path(name).resolve() for name in names]
    for file in files:
        for rule, sentence in findings(file):
            print(f"{_name(file)}: {rule}: {sentence}")
    if files:
        return
    every = [*pages_of_users(), *sorted((REPOSITORY / "cuda_gctx").rglob("*.py"))]
    found = {file: Counter(rule for rule, _ in findings(file)) for file in every}
    together = sum(found.values(), Counter())
    print(f"English, {together.total()} hints in {len(every)} files (python tools/english.py FILE shows them):")
    for rule, count in together.most_common():
        print(f"{count:6} {rule}")
    for file in sorted(every, key=lambda file: -found[file].total())[:8]:
        print(f"{found[file].total():6} in {_name(file)}")


if __name__ == "__main__":
    main(sys.argv[1:])
