"""Marks of the package and of the library of ``cuda-gctx run``: names of contexts, openings and switches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mark", "read_marks"]


@dataclass(frozen=True)
class Mark:
    """Something that a program did. time: in nanoseconds of CLOCK_REALTIME. names: of partitions."""

    pid: int
    time: int
    event: str  # open or switch
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.event} {', '.join(self.names)}"


def read_marks(files: Sequence[Path], shifts: Mapping[int, int]) -> tuple[dict[tuple[int, int], str], list[Mark]]:
    """The names of contexts by process and number, and the marks in their order.

    shifts: from the clock of the records to CLOCK_REALTIME, by process. Marks of others have the time of the host.
    """
    names: dict[tuple[int, int], str] = {}
    marks: list[Mark] = []
    for file in files:
        pid = int(file.name.split(".", 1)[0])
        for line in file.read_text(errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError):  # the last line of a process that was killed
                entry = json.loads(line)
                contexts = {int(number): str(name) for number, name in entry.get("contexts", {}).items()}
                names |= {(pid, number): name for number, name in contexts.items()}
                found = tuple(entry.get("names", contexts.values()))
                time = int(entry["time"])
                if pid in shifts and "recorded_time" in entry:
                    time = int(entry["recorded_time"]) + shifts[pid]
                marks.append(Mark(pid, time, str(entry["event"]), found))
    return names, sorted(marks, key=lambda mark: mark.time)
