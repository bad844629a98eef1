"""Tuning: the fastest for the slowest rank, the same choice on every rank, tables as JSON."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cuda_gctx._core.progress import Progress
from cuda_gctx.comm import MixedCommMode, MixedCommOp, ParallelInfo, TuningTable
from cuda_gctx.comm._backends import LocalBackend
from cuda_gctx.comm._tuning import Case, Choice, description_of, tune

ONE, TWO, NCCL = MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE, MixedCommMode.NCCL_ONE
REDUCE = MixedCommOp.ALLREDUCE
INFO = ParallelInfo.of(0, 2, 0, 2, 0, 1)
DESCRIPTION = description_of(INFO, "torch.bfloat16", "a card", 8, "13000")


def on_all(size: int, work: Any) -> list[Any]:
    """What each of several ranks returns, or the exception that it raises."""
    found: list[Any] = [None] * size

    def run(backend: LocalBackend) -> None:
        try:
            found[backend.Get_rank()] = work(backend.Get_rank(), backend)
        except Exception as error:
            found[backend.Get_rank()] = error

    threads = [threading.Thread(target=run, args=(one,)) for one in LocalBackend.of(size, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def tuned(rank_times: list[dict[tuple[MixedCommMode, int], float]], sizes: list[int]) -> list[Any]:
    def work(rank: int, backend: LocalBackend) -> TuningTable:
        times = rank_times[rank]
        cases = [Case(REDUCE, size, False) for size in sizes]
        candidates = list(rank_times[0])
        with Progress(False) as bar:
            return tune(
                backend, DESCRIPTION, cases, lambda case: candidates, lambda case, mode, grid: times[mode, grid], bar
            )

    return on_all(len(rank_times), work)


def test_the_slowest_rank_decides_and_all_ranks_have_one_table() -> None:
    # Each rank alone would choose another one.
    tables = tuned(
        [
            {(ONE, 8): 3.0, (ONE, 4): 5.0, (NCCL, 0): 9.0},
            {(ONE, 8): 7.0, (ONE, 4): 6.0, (NCCL, 0): 2.0},
        ],
        [1024],
    )
    assert tables[0] == tables[1]
    [(case, ranking)] = tables[0].rankings
    assert case == Case(REDUCE, 1024, False)
    assert ranking == (Choice(ONE, 4, 6.0), Choice(ONE, 8, 7.0), Choice(NCCL, 0, 9.0))
    assert tables[1].select(REDUCE, 1024, False, [ONE, NCCL]) == ranking[0]


def test_close_candidates_are_measured_again_in_turns() -> None:
    # What disturbs one of five measurements changes no choice; what is far slower is not measured again.
    asked: list[list[MixedCommMode]] = [[], []]
    times = {ONE: [1.06, 1.0, 1.0], TWO: [1.0, 1.03, 1.04], NCCL: [1.2]}

    def work(rank: int, backend: LocalBackend) -> TuningTable:
        left = {mode: iter(one) for mode, one in times.items()}

        def measure(case: Case, mode: MixedCommMode, grid: int) -> float:
            asked[rank].append(mode)
            return next(left[mode]) - 0.5 * rank

        with Progress(False) as bar:
            candidates = [(ONE, 8), (TWO, 8), (NCCL, 0)]
            return tune(backend, DESCRIPTION, [Case(REDUCE, 1024, False)], lambda case: candidates, measure, bar)

    tables = on_all(2, work)
    assert asked == [[ONE, TWO, NCCL, ONE, TWO, ONE, TWO]] * 2
    assert tables[0] == tables[1]
    assert tables[0].rankings[0][1] == (Choice(ONE, 8, 1.0), Choice(TWO, 8, 1.03), Choice(NCCL, 0, 1.2))


def test_an_error_of_one_rank_is_raised_on_all() -> None:
    def work(rank: int, backend: LocalBackend) -> None:
        def measure(case: Case, mode: MixedCommMode, grid: int) -> float:
            if rank == 1:
                raise RuntimeError("no memory")
            return 1.0

        with Progress(False) as bar:
            tune(backend, DESCRIPTION, [Case(REDUCE, 1024, False)], lambda case: [(ONE, 8)], measure, bar)

    for error in on_all(3, work):
        assert isinstance(error, RuntimeError)
        assert str(error) == "ONE_EXCHANGE of ALLREDUCE could not be measured: rank 1: no memory"


def table_of(*cases: tuple[Case, list[Choice]]) -> TuningTable:
    return TuningTable(DESCRIPTION, tuple((case, tuple(ranking)) for case, ranking in cases))


def test_the_nearest_size_by_ratio_is_taken() -> None:
    table = table_of(
        (Case(REDUCE, 1 << 10, False), [Choice(ONE, 8, 1.0)]), (Case(REDUCE, 1 << 20, False), [Choice(TWO, 8, 1.0)])
    )
    modes = {size: table.select(REDUCE, size, False, [ONE, TWO]) for size in (0, 1, 1 << 14, 1 << 16, 1 << 30)}
    assert [choice.mode for choice in modes.values() if choice] == [ONE, ONE, ONE, TWO, TWO]
    assert table.select(MixedCommOp.ALLGATHER, 1024, False, [ONE, TWO]) is None


def test_times_are_interpolated_between_sizes_that_were_measured() -> None:
    # One mode costs the same at all sizes, the other one more than doubles with the size: they meet below the middle.
    table = table_of(
        (Case(REDUCE, 1 << 10, False), [Choice(TWO, 8, 2.0), Choice(NCCL, 0, 4.0), Choice(ONE, 8, 9.0)]),
        (Case(REDUCE, 1 << 14, False), [Choice(NCCL, 0, 4.0), Choice(TWO, 8, 64.0)]),
    )
    modes = [table.select(REDUCE, 1 << shift, False, [TWO, NCCL, ONE]) for shift in range(9, 16)]
    assert [choice.mode for choice in modes if choice] == [TWO, TWO, NCCL, NCCL, NCCL, NCCL, NCCL]
    # At a size that only one of them has, that one counts.
    assert table.select(REDUCE, 3 << 9, False, [ONE]) == Choice(ONE, 8, 9.0)


def test_what_cannot_carry_out_a_call_is_passed_over() -> None:
    table = table_of((Case(REDUCE, 1 << 19, False), [Choice(ONE, 8, 1.0), Choice(TWO, 4, 2.0)]))
    assert table.select(REDUCE, 1 << 20, False, [TWO]) == Choice(TWO, 4, 2.0)
    assert table.select(REDUCE, 1 << 20, False, [NCCL]) is None


def test_mapped_tensors_have_choices_of_their_own_where_they_were_measured() -> None:
    staged = Case(REDUCE, 1 << 20, False), [Choice(NCCL, 0, 1.0)]
    mapped = Case(REDUCE, 1 << 20, True), [Choice(TWO, 8, 1.0)]
    choice = table_of(staged, mapped).select(REDUCE, 1 << 20, True, [NCCL, TWO])
    assert choice is not None
    assert choice.mode is TWO
    choice = table_of(staged).select(REDUCE, 1 << 20, True, [NCCL, TWO])
    assert choice is not None
    assert choice.mode is NCCL


def test_a_table_comes_back_from_its_file(tmp_path: Path) -> None:
    table = table_of(
        (Case(REDUCE, 1 << 10, False), [Choice(ONE, 8, 1.25), Choice(NCCL, 0, 3.5)]), (Case(REDUCE, 64, True), [])
    )
    table.save(tmp_path / "table.json")
    assert TuningTable.load(tmp_path / "table.json") == table


@pytest.mark.parametrize(
    "text", ["{}", "[]", "nothing", '{"schema": 2}', '{"schema": 1, "made for": {}, "cases": [1]}']
)
def test_a_file_that_holds_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"table|schema|Expecting"):
        TuningTable.from_json(text)


def test_a_table_for_something_else_is_refused_by_name() -> None:
    other = description_of(INFO, "torch.float16", "a card", 16, "13000")
    with pytest.raises(ValueError, match=r"dtype: torch\.bfloat16 there, torch\.float16 here; SMs: 8 there, 16 here"):
        table_of().demand_made_for(other)
    other = (*DESCRIPTION[:-1], ("kernels", "rewritten"))
    with pytest.raises(ValueError, match=r"kernels: [0-9a-f]{8} there, rewritten here; call run_autotune"):
        table_of().demand_made_for(other)
    with pytest.raises(ValueError, match=r"blocks: 9 there, at most 8 here"):
        table_of((Case(REDUCE, 1024, False), [Choice(TWO, 9, 1.0)])).demand_made_for(DESCRIPTION)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"grid": 8', '"grid": -5'),
        ('"grid": 8', '"grid": true'),
        ('"bytes": 1024', '"bytes": 0'),
        ('"us": 1.25', '"us": 0'),
        ('"us": 1.25', '"us": NaN'),
    ],
)
def test_a_table_with_numbers_that_cannot_be_is_refused(old: str, new: str) -> None:
    text = table_of((Case(REDUCE, 1024, False), [Choice(ONE, 8, 1.25)])).to_json()
    assert old in text
    with pytest.raises(ValueError, match=f"not a tuning table: {old.split(chr(34))[1]} must be"):
        TuningTable.from_json(text.replace(old, new))


def test_progress_is_shown_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Progress(True) as bar:
        tune(
            LocalBackend.of(1, 60)[0],
            DESCRIPTION,
            [Case(REDUCE, 1024, False)],
            lambda case: [(ONE, 8)],
            lambda case, mode, grid: 1.0,
            bar,
        )
    shown = sys.stderr.getvalue()
    assert "ALLREDUCE, 1024 bytes: ONE_EXCHANGE" in shown
