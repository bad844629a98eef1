"""Libraries of products in the tuner: the current stream, and the SM count hint."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_gctx import Device, Stream, tune
from cuda_gctx.tune import Plan, _parts, spin

from ..common import refusal
from .pairs import (
    MS,
    WHOLE,
    chain,
    of_kind,
    tuned,
    work,
)

pytestmark = pytest.mark.sim_only


def test_the_stream_is_the_current_one_of_torch_while_a_part_is_called(torch: Any, dev: Device) -> None:
    wrong = []

    def left(stream: Stream) -> None:
        if torch.cuda.current_stream().cuda_stream != stream.handle:
            wrong.append(stream)
        spin(stream, WHOLE // 2, MS)

    before = torch.cuda.current_stream()
    report = tune.overlap(left, right=work(WHOLE // 2, MS), device=dev, library_sms="off", budget_s=2)
    assert not wrong
    assert torch.cuda.current_stream() == before
    assert torch.waits == []
    assert not any(result.plan.library_sms for result in report.results)


def test_partitions_are_measured_without_and_with_library_sms(
    torch: Any, dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[int] = []

    @contextmanager
    def library_sms(stream: Stream) -> Iterator[None]:
        reported.append(stream.resources.sm.sm_count)
        try:
            yield
        finally:
            reported.pop()

    monkeypatch.setattr(_parts, "_library_sms", library_sms)

    def product(stream: Stream) -> None:
        # A library that knows how few SMs it has does with less work here.
        spin(stream, 2 * 232, MS // 2 if reported else MS)

    report = tune.overlap(product, chain=chain, device=dev, sizes=[16], budget_s=4)
    assert {result.plan.library_sms for result in of_kind(report, "partitions")} == {False, True}
    assert {r.plan.library_sms for r in of_kind(report, "overlay")} == {False, True}
    assert not any(r.plan.library_sms for r in report.results if r.plan.layout is None)
    assert report.choice is not None
    assert report.choice.library_sms
    assert "SM count hint" in str(report.choice)
    assert ", hint" in str(report)
    assert Plan.from_json(report.choice.to_json()) == report.choice
    always = tune.overlap(product, chain=chain, device=dev, sizes=[16], library_sms="on", budget_s=4)
    assert {result.plan.library_sms for result in of_kind(always, "partitions")} == {True}


def test_a_torch_without_a_gpu_takes_no_hint(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    with pytest.raises(ValueError, match="needs torch or CuPy with a GPU"):
        tune.overlap(chain, other=chain, device=dev, library_sms="on")


def test_each_library_that_is_loaded_is_reported(torch: Any, dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = []

    @contextmanager
    def block(library: Any, stream: Stream, choice: str) -> Iterator[None]:
        reported.append((library, stream.resources.sm.sm_count, choice))
        yield

    cupy = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setattr("cuda_gctx.interop.library_sms.torch_block", block)
    monkeypatch.setattr("cuda_gctx.interop.library_sms.cupy_block", block)
    with dev.partition(a=16) as parts:
        with _parts._library_sms(parts.a.stream):
            assert reported == [(torch, 16, "on")]
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        with _parts._library_sms(parts.a.stream):
            assert len(reported) == 2  # CuPy has no device
        cupy.cuda.is_available = lambda: True
        with _parts._library_sms(parts.a.stream):
            assert reported[3:] == [(cupy, 16, "on")]


def test_libraries_without_a_hint_are_left_out_with_the_reason(
    torch: Any, dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def library_sms(stream: Stream) -> Iterator[None]:
        raise RuntimeError("libcublas is not loaded")
        yield

    monkeypatch.setattr(_parts, "_library_sms", library_sms)
    report = tuned("a chain")
    assert report.choice is not None
    assert report.choice.kind == "partitions"
    assert any("the SM count hint cannot be set: RuntimeError: libcublas" in reason for reason in report.reasons)
    error = refusal(RuntimeError, lambda: tuned("a chain", library_sms="on"))
    assert "is not possible here: RuntimeError: libcublas" in str(error)
