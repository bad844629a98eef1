"""The fastest mode and grid for an operation and a size: measured once, with the same choice on every rank."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from math import inf, log2
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

from cuda_gctx.comm._backends import CommBackend, gather_results
from cuda_gctx.comm._compile import FOLDER
from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp, ParallelInfo
from cuda_gctx.extending import Progress

__all__ = ["Case", "Choice", "TuningTable", "tune"]

SCHEMA = 1
# Candidates that are slower than the fastest by at most so much are measured again, in turns: what else the machine did
# during one measurement does not decide between them.
CLOSE = 1.08
TURNS = 2


@dataclass(frozen=True)
class Choice:
    """A mode, the number of SMs of its kernel (0 where a library decides), and the time of a call in microseconds.

    The time is that of the slowest rank.
    """

    mode: MixedCommMode
    grid: int
    us: float


@dataclass(frozen=True)
class Case:
    """The case of a measurement: an operation, the bytes of the larger of input and output, whether both are mapped."""

    op: MixedCommOp
    message_bytes: int
    is_mapped: bool


@dataclass(frozen=True)
class TuningTable:
    """The choices for the measured cases, the fastest first.

    description: the machine of the measurements: topology, data type, device, number of SMs.
    """

    description: tuple[tuple[str, str], ...]
    rankings: tuple[tuple[Case, tuple[Choice, ...]], ...]

    def select(
        self, op: MixedCommOp, message_bytes: int, is_mapped: bool, possible: Collection[MixedCommMode]
    ) -> Choice | None:
        """The fastest possible choice for a size; None if there is none.

        op: the operation. message_bytes: the larger of input and output. Between two measured sizes, the times of both
        are interpolated by ratios; outside of the measured range, the nearest size counts.
        is_mapped: whether both tensors are mapped. Without measurements of these, the choices for others count.
        possible: the modes from which to choose.
        """
        cases = [(case, ranking) for case, ranking in self.rankings if case.op is op]
        alike = [(case, ranking) for case, ranking in cases if case.is_mapped == is_mapped] or cases
        if not alike:
            return None
        size = log2(max(message_bytes, 1))
        (at, nearest), *others = sorted(
            ((log2(case.message_bytes), ranking) for case, ranking in alike), key=lambda entry: abs(entry[0] - size)
        )
        ranking = [choice for choice in nearest if choice.mode in possible]
        beyond = next(((other, there) for other, there in others if (other - size) * (at - size) < 0), None)
        if beyond is not None:
            weight = (size - at) / (beyond[0] - at)
            times = {(choice.mode, choice.grid): choice.us for choice in beyond[1]}
            in_both = [choice for choice in ranking if (choice.mode, choice.grid) in times]
            in_both.sort(key=lambda choice: choice.us ** (1 - weight) * times[choice.mode, choice.grid] ** weight)
            ranking = in_both or ranking
        return ranking[0] if ranking else None

    def demand_made_for(self, description: tuple[tuple[str, str], ...]) -> None:
        """ValueError that names what differs."""
        own = dict(self.description)
        different = [
            f"{what}: {own.get(what)} there, {value} here" for what, value in description if own.get(what) != value
        ]
        sms = next((int(value) for what, value in description if what == "SMs"), 0)
        largest = max((choice.grid for _, ranking in self.rankings for choice in ranking), default=0)
        if largest > sms:
            different.append(f"blocks: {largest} there, at most {sms} here")
        if different:
            raise ValueError(f"the tuning table does not fit this handler: {'; '.join(different)}; call run_autotune()")

    def to_json(self) -> str:
        """The table as a JSON document."""
        return json.dumps(
            {
                "schema": SCHEMA,
                "made for": dict(self.description),
                "cases": [
                    {
                        "op": case.op.name,
                        "bytes": case.message_bytes,
                        "mapped": case.is_mapped,
                        "choices": [{"mode": one.mode.name, "grid": one.grid, "us": one.us} for one in ranking],
                    }
                    for case, ranking in self.rankings
                ],
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str) -> TuningTable:
        """A table that was written as JSON; ValueError for a text that is not a table of this schema."""
        try:
            document: Any = json.loads(text)
            if document["schema"] != SCHEMA:
                raise ValueError(f"schema {document['schema']} is not supported; expected {SCHEMA}")
            return cls(
                tuple(document["made for"].items()),
                tuple(
                    (
                        Case(MixedCommOp[case["op"]], _at_least(1, "bytes", case["bytes"]), bool(case["mapped"])),
                        tuple(
                            Choice(
                                MixedCommMode[choice["mode"]],
                                _at_least(0, "grid", choice["grid"]),
                                _positive("us", choice["us"]),
                            )
                            for choice in case["choices"]
                        ),
                    )
                    for case in document["cases"]
                ),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a tuning table: {type(error).__name__}: {error}") from error

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as JSON.

        path: the file.
        """
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> TuningTable:
        """The table of a file.

        path: a file that save() wrote; ValueError for any other file.
        """
        return cls.from_json(Path(path).read_text(encoding="utf-8"))


def _at_least(least: int, what: str, value: Any) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"not a tuning table: {what} must be an int of at least {least}, not {value!r}")
    return value


def _positive(what: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < inf:
        raise ValueError(f"not a tuning table: {what} must be a positive number, not {value!r}")
    return float(value)


@cache
def _versions() -> dict[str, str]:
    """What else a measured time depends on."""
    sources = b"".join(file.read_bytes() for file in sorted(FOLDER.glob("*.cu*")))
    return {"package": version("cuda-gctx"), "kernels": f"{crc32(sources):08x}"}


def description_of(
    info: ParallelInfo, dtype: str, device: str, grid_size: int, driver: str
) -> tuple[tuple[str, str], ...]:
    """What a table is measured on; the same on all ranks."""
    topology = {
        "local tp x dp": f"{info.local_tp_size} x {info.local_dp_size}",
        "inter tp x dp": f"{info.inter_tp_size} x {info.inter_dp_size}",
        "dtype": dtype,
        "device": device,
        "driver": driver,
        "SMs": str(grid_size),
    }
    return tuple((topology | _versions()).items())


def tune(
    backend: CommBackend,
    description: tuple[tuple[str, str], ...],
    cases: Sequence[Case],
    candidates: Callable[[Case], Sequence[tuple[MixedCommMode, int]]],
    measure: Callable[[Case, MixedCommMode, int], float],
    progress: Progress,
) -> TuningTable:
    """Measures every candidate of every case, and the fastest again. Collective: all ranks get the table of the first.

    candidates: modes and grids. measure: microseconds of a call on this rank; every rank calls it for the same
    candidates in the same order. An error of one rank is raised on all.
    """
    rankings = []
    for number, case in enumerate(cases):
        times: dict[tuple[MixedCommMode, int], list[float]] = {one: [] for one in candidates(case)}
        again = list(times)
        for turn in range(1 + TURNS):
            for mode, grid in again:
                progress.show(number / len(cases), f"{case.op.name}, {case.message_bytes} bytes: {mode.name}")
                taken = _slowest(backend, case, mode, lambda: measure(case, mode, grid))  # noqa: B023
                times[mode, grid].append(taken)
            if turn == 0:
                # The times are those of the slowest rank: all ranks go on with the same candidates.
                limit = CLOSE * min((taken for [taken] in times.values()), default=0.0)
                close = [one for one, [taken] in times.items() if taken <= limit]
                again = close if len(close) > 1 else []
        ranking = [Choice(mode, grid, round(median(taken), 3)) for (mode, grid), taken in times.items()]
        rankings.append((case, tuple(sorted(ranking, key=lambda choice: choice.us))))
    table = TuningTable(description, tuple(rankings))
    return TuningTable.from_json(backend.bcast(table.to_json(), 0))


def _slowest(backend: CommBackend, case: Case, mode: MixedCommMode, measure: Callable[[], float]) -> float:
    problem = f"{mode.name} of {case.op.name} could not be measured"
    found = gather_results(backend, measure, (RuntimeError, ValueError), problem)
    return round(max(float(one) for one in found), 3)
