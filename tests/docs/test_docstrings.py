"""``help()`` of the main objects ends with an example, which runs and prints what its comments say.

The page of an object shows its docstring, so no page repeats the example.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

import cuda_gctx
from cuda_gctx import partitions, tune
from cuda_gctx.comm import run_mixed_comm
from cuda_gctx.partitions import verify

from .test_docs import PAGES, Block, blocks_of, name_of, page_blocks, run_page
from .test_reference import callables, example_in

WITH_EXAMPLES = {name: thing for name, thing in callables() if example_in(thing)}
MAIN = [
    cuda_gctx.Context,
    cuda_gctx.Device,
    cuda_gctx.Event,
    cuda_gctx.Graph,
    cuda_gctx.GraphSet,
    cuda_gctx.Layout,
    cuda_gctx.Partition,
    cuda_gctx.PartitionPool,
    cuda_gctx.Partitions,
    cuda_gctx.SMResource,
    cuda_gctx.Stream,
    cuda_gctx.Timeline,
    cuda_gctx.trace,
    run_mixed_comm,
    tune.overlap,
    verify,
]

ON_THE_CPU = page_blocks.ON_THE_CPU


def shown(code: str) -> Iterator[str | None]:
    """The comment after each print(), which is what it prints; None if it is about it."""
    for line in code.splitlines():
        if printed := re.match(r"\s*print\(.*?\)(?:  # (.*))?$", line):
            text = re.sub(r", on an H200$", "", printed[1] or "")
            yield text if re.match(r"[\d(\[]|True|False|\w+ \d", text) else None


@pytest.mark.parametrize("thing", MAIN, ids=lambda thing: thing.__name__)
def test_help_of_a_main_object_has_an_example(thing: object) -> None:
    assert any(thing is each for each in WITH_EXAMPLES.values())


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_example_of_a_docstring_prints_what_it_says(name: str) -> None:
    code = example_in(WITH_EXAMPLES[name])
    needs_torch = "import torch" in code
    if needs_torch and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    [printed] = run_page(name, [Block("python", 1, ON_THE_CPU if needs_torch else "", code.splitlines())])
    wanted = list(shown(code))
    if None in wanted:
        return
    assert printed.splitlines() == [str(text).partition(":")[0] for text in wanted]


def test_a_page_has_no_copy_of_an_example() -> None:
    examples = {name: example_in(thing).splitlines() for name, thing in WITH_EXAMPLES.items()}
    copies = [
        f"{name_of(page)}:{block.line}: {name}"
        for page in PAGES
        for block in blocks_of(page.read_text())
        for name, lines in examples.items()
        if "\n".join(lines[1:]) in block.text
    ]
    assert copies == []


def test_partitions_have_no_signature_and_say_what_makes_them() -> None:
    with pytest.raises(ValueError, match="no signature"):
        inspect.signature(partitions.Partitions)
    with pytest.raises(TypeError, match=r"Device\.partition"):
        partitions.Partitions(16)
