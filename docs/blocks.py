"""The blocks of code on a page, and how each of them is run.

A comment on the line before a block of Python says how it is run:

    <!-- on a GPU: torch, numpy<2.5 -->    on a GPU, with these modules, by docs/run_on_gpu.py
    <!-- on the CPU: torch -->             on the CPU, by the tests where torch is installed
    <!-- not run: reason -->               not at all
    <!-- pytest -->                        as a file of tests
    (none)                                 on the software driver, by the tests

README.md has no such comments: OF_README lists its blocks.
Blocks of a page run in order and share their names. What a reader has already, such as a model, a page defines in
comments that begin with "given:", which run in their places where the blocks need a GPU.

A block of text below is what the block above prints. A comment on the line before it says how far:

    (none)                    in full; a line with nothing but "..." stands for lines that are left out
    <!-- numbers vary -->     one run shows other numbers than the next
    <!-- like: PATTERN -->    one run; in PATTERN, which every run has to match, "..." stands for any text
    <!-- recorded -->         the block above printed it on a GPU, and it was copied by hand
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

NUMBERS_VARY = "numbers vary"
RECORDED = "recorded"
ON_A_GPU = "on a GPU: "
ON_THE_CPU = "on the CPU: torch"
GIVEN = re.compile(r"^<!-- given:\n(.*?)^-->$", re.DOTALL | re.MULTILINE)
LIKE = "like: "
COMMENT = re.compile(r"<!--\s*(.*?)\s*-->")
# README.md has no comments, because it is also read raw. How its blocks are run, by their first line:
OF_README = {
    "from cuda_gctx.interop.torch import fork": "on a GPU: torch",
    "import pytest": "pytest",
}


def is_of_output(comment: str) -> bool:
    """Whether a comment, or none, is one that a block of output can have."""
    return comment in ("", NUMBERS_VARY, RECORDED) or comment.startswith(LIKE)


@dataclass
class Block:
    """A fenced block of a page."""

    language: str
    line: int  # of the fence that opens it, from 1
    comment: str  # the HTML comment on the line before
    lines: list[str] = field(default_factory=list)
    below: Block | None = (
        None  # the block that follows with nothing but empty lines between
    )

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def kind(self) -> str:
        """What is to be done with it: its language, "pytest", "gpu", "cpu", "given", or "" if it is not run."""
        if self.comment.startswith("not run"):
            return ""
        if self.comment.startswith(ON_A_GPU):
            return "gpu"
        if self.comment == ON_THE_CPU:
            return "cpu"
        return (
            self.comment if self.comment in ("pytest", "given") else self.language
        )

    @property
    def needs(self) -> list[str]:
        """The modules without which it cannot run on a GPU."""
        return (
            self.comment.removeprefix(ON_A_GPU).split(", ")
            if self.kind == "gpu"
            else []
        )


def blocks_of(text: str) -> list[Block]:
    blocks: list[Block] = []
    before, gap = (
        "",
        True,
    )  # the line before, and whether a line of prose stands since the last block
    current: Block | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if current is not None:
            if line.rstrip() == "```":
                current, gap = None, False
            else:
                if not current.lines and not current.comment:
                    current.comment = OF_README.get(line, "")
                current.lines.append(line)
        elif line.startswith("```"):
            comment = COMMENT.fullmatch(before.strip())
            current = Block(
                line[3:].strip(), number, comment[1] if comment else ""
            )
            if blocks and not gap and is_of_output(current.comment):
                blocks[-1].below = current
            blocks.append(current)
        elif line.strip():
            comment = COMMENT.fullmatch(line.strip())
            gap |= comment is None or not is_of_output(comment[1])
        before = line
    assert current is None, "a block is not closed"
    return blocks


def given_on(text: str) -> list[Block]:
    """What a reader of a page has already, as blocks of code."""
    found = []
    for match in GIVEN.finditer(text):
        line = text[: match.start()].count("\n") + 1
        found.append(Block("python", line, "given", match[1].splitlines()))
    return found


def on_a_gpu(text: str) -> list[Block]:
    """What runs on a GPU, in order: the blocks of a page that need one, what is given, and the blocks before them."""
    blocks = [
        block for block in blocks_of(text) if block.kind in ("python", "gpu")
    ]
    blocks = sorted([*blocks, *given_on(text)], key=lambda block: block.line)
    last = max(
        (at for at, block in enumerate(blocks) if block.kind == "gpu"), default=-1
    )
    return blocks[: last + 1]
