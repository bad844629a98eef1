"""A sample of the programs; ``python -m tests.trust.silent_answers`` runs more."""

from __future__ import annotations

from typing import Any

import pytest

from cuda_gctx.partitions import split

from . import silent_answers

pytestmark = [pytest.mark.sim_only, pytest.mark.filterwarnings("ignore")]


def test_every_answer_is_that_of_the_driver_and_of_the_model() -> None:
    checked, wrong = silent_answers.run(range(28))
    assert wrong == []
    assert checked > 300


def rounds_up(count_of: Any) -> Any:
    def wrong(name: str, spec: Any, whole: Any) -> Any:
        count = count_of(name, spec, whole)
        return count + whole.coscheduled_alignment if isinstance(spec.sms, float) else count

    return wrong


def test_a_share_that_is_rounded_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "count_of", rounds_up(split.count_of))
    assert any("were possible" in one for one in silent_answers.run(range(16))[1])


def test_a_stream_of_another_context_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silent_answers.Raw, "context_of_stream", lambda self, stream: 0)
    assert any("is of another context" in one for one in silent_answers.run([0])[1])
