"""Headers change what they say of functions, and rows of functions.def name each change (compare_headers.py)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ABI = Path(__file__).resolve().parents[1] / "cpp" / "abi"


def load(name: str) -> Any:
    """Imports a script of the folder without a change of sys.path, which would find other packages `tests`."""
    spec = importlib.util.spec_from_file_location(name, ABI / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


load("make_tables")
compare_headers = load("compare_headers")

COMMENT = """/**
 * \\brief Query the flags of a given stream.
 *
 * {sentence}
 *
 * \\return
 * ::CUDA_SUCCESS, ::CUDA_ERROR_INVALID_HANDLE
 *
 * \\sa ::{reference}
 */
CUresult CUDAAPI cuStreamGetFlags(CUstream hStream, unsigned int *flags);
"""


def complaints(
    *sentences: str, rows: dict[tuple[str, int], str] | None = None, reference: str = "cuStreamCreate"
) -> list[str]:
    """Complaints about headers of 13.0, 13.1 and so on that say these sentences of one function."""
    headers = {
        13000 + 10 * number: COMMENT.format(sentence=sentence, reference=f"{reference}{number}")
        for number, sentence in enumerate(sentences)
    }
    return compare_headers.complaints(compare_headers.changes(headers), rows or {})


def test_a_changed_sentence_without_a_row_is_a_complaint() -> None:
    [complaint] = complaints("The \\p flags are 0.", "The \\p flags are 0.", "The flags are 1.")
    assert complaint.splitlines() == [
        "cuStreamGetFlags 13020: no row says that its text changes",
        "  - the flags are 0",
        "  + the flags are 1",
    ]


@pytest.mark.parametrize("word", compare_headers.WORDS)
def test_a_row_answers_for_the_change_of_one_version(word: str) -> None:
    sentences = "The flags are 0.", "The flags are 1.", "The flags are 2."
    assert len(complaints(*sentences, rows={("cuStreamGetFlags", 13010): word})) == 1
    both = {("cuStreamGetFlags", 13010): word, ("cuStreamGetFlags", 13020): word}
    assert complaints(*sentences, rows=both) == []


def test_markup_and_references_are_no_change() -> None:
    assert complaints("The \\p flags are 0.", "The ::flags\n * are 0:") == []


def test_a_row_without_a_change_is_a_complaint() -> None:
    rows = {("cuStreamGetFlags", 13010): "follows"}
    assert complaints("The flags are 0.", "The flags are 0.", rows=rows) == [
        "cuStreamGetFlags 13010: its text does not change, and a row says follows"
    ]


def test_every_modelled_version_has_a_header_or_was_never_released() -> None:
    assert compare_headers.modelled_versions() == compare_headers.WHEELS.keys() | compare_headers.WITHOUT_WHEEL
