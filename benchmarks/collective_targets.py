"""What cuda_gctx.comm has to reach, and what benchmarks/communication.py has measured, as a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

Result = dict[str, Any]
Row = tuple[str, str, str]

TUNED = "`AUTOTUNE` next to the best NCCL mode, 1 KiB to 256 MiB"
SMALL = [1 << shift for shift in (13, 14, 15)]
LARGE = 1 << 28
# How many times as fast as NCCL AUTOTUNE is at least.
LEAST = 0.98
# GEMM and all-reduce at the same time, by the SMs of the all-reduce.
STEP = re.compile(r"\d+ \+ \d+ SMs, TWO_EXCHANGE, SM count hint \d+")


def times(result: Result, topology: str, op: str, size: int) -> dict[str, float]:
    """Microseconds at one size, by variant."""
    wanted = {"topology": topology, "op": op, "bytes": size}
    rows = [row for row in result["sweep"] if "us" in row and all(row.get(key) == wanted[key] for key in wanted)]
    return {row["variant"]: row["us"] for row in rows}


def between(values: Sequence[float], digits: int, unit: str = "") -> str:
    least, most = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return f"{least}{unit}" if least == most else f"{least} to {most}{unit}"


def words_of(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def small_messages(result: Result) -> list[Row]:
    ops = ("ALLREDUCE_ALLGATHER", "REDUCESCATTER_ALLREDUCE")
    found = {size: [times(result, "2 x 2", op, size) for op in ops] for size in SMALL}
    one, nccl = "ONE_EXCHANGE, 8 SMs", "two NCCL calls, all SMs"
    every = list(chain(*found.values()))
    faster = between([us[nccl] / us[one] for us in every], 1)
    what = "all-reduce + all-gather and reduce-scatter + all-reduce, 2 x 2"
    return [
        (
            f"{what}, 8 to 32 KiB",
            "at most 4.0 us, 3.3 times faster than two NCCL calls",
            f"{between([us[one] for us in every], 1)} us, {faster} times faster",
        )
    ]


def early_launches(result: Result) -> list[Row]:
    found = [times(result, "2 x 2", op, SMALL[0]) for op in ("ALLREDUCE_ALLGATHER", "REDUCESCATTER_ALLREDUCE")]
    us = [of_op[variant] for of_op in found for variant in of_op if variant == "ONE_EXCHANGE, 8 SMs, programmatic"]
    return [("the same at 8 KiB with `programmatic_launch`", "3.3 us", between(us, 1, " us"))] if us else []


def large_all_reduce(result: Result) -> list[Row]:
    us = times(result, "2 x 1", "ALLREDUCE", LARGE)
    nccl = f"NCCL in 8 SMs: {us['NCCL_ONE, 8 SMs']:.0f}; on all SMs: {us['NCCL, all SMs']:.0f}"
    what = "all-reduce of 256 MiB, partition of 8 SMs"
    return [
        (f"{what}, {how}", target, f"{us[f'TWO_EXCHANGE, 8 SMs, {how}']:.0f} us ({nccl})")
        for how, target in (("mapped", "820 us"), ("staged", "870 us"))
    ]


def few_sms(result: Result) -> list[Row]:
    """A partition of 8 SMs next to NCCL on the whole device, up to 64 MiB."""
    ours = ("ONE_EXCHANGE, 8 SMs", "TWO_EXCHANGE, 8 SMs, mapped")
    # Of operations that both kernels compute.
    rows = [row for row in result["sweep"] if row["bytes"] <= 64 << 20 and row["variant"] == ours[1]]
    cases = {(row["topology"], row["op"], row["bytes"]) for row in rows}
    faster, slower = [], []
    for topology, op, size in sorted(cases, key=lambda case: (case[0], case[2], case[1])):
        us = times(result, topology, op, size)
        nccl = us["two NCCL calls, all SMs" if "two NCCL calls, all SMs" in us else "NCCL, all SMs"]
        best = min(us[name] for name in ours if name in us)
        faster.append(nccl / best)
        if best > nccl:
            slower.append(f"{op.lower().replace('_', ' + ')} of {words_of(size)} ({best:.1f} us, NCCL {nccl:.1f})")
    measured = f"{between(faster, 2)} times as fast in {len(faster)} cases"
    measured += f"; slower: {', '.join(slower)}" if slower else ""
    return [("8 SMs with mapped tensors next to NCCL on all SMs, 1 KiB to 64 MiB", "", measured)]


def autotune(result: Result) -> list[Row]:
    """Where AUTOTUNE has chosen NCCL, identical calls are compared: that is the error of the ratios."""
    key = "faster than the best NCCL mode"
    rows = [row for row in result["autotune"] if key in row]
    found = []
    for tensors in ("mapped", "staged"):
        alike = [row for row in rows if row["tensors"] == tensors]
        own = [row[key] for row in alike if not row["chosen"].startswith("NCCL")]
        if own:
            target = "at least 0.98 times as fast, faster up to 64 MiB"
            below = f"below 0.98 in {sum(one < LEAST for one in own)}, below 1 in {sum(one < 1 for one in own)}"
            cases = f"in the {len(own)} of {len(alike)} cases where it chose its own kernels, {below}"
            found.append(
                (
                    f"{TUNED}, {tensors} tensors",
                    target,
                    f"{between(own, 2)} times {cases}",
                )
            )
    same = [row["same calls"] for row in result["autotune"] if "same calls" in row]
    same += [row[key] for row in rows if row["chosen"].startswith("NCCL")]
    if same:
        outside = sum(not LEAST <= one <= 1 / LEAST for one in same)
        found.append(
            (
                "identical NCCL calls, compared like that: the error of these ratios",
                "",
                f"{between(same, 2)} times in {len(same)} cases, off by more than 2% in {outside}",
            )
        )
    return found


def overlap(result: Result) -> list[Row]:
    us = {row["plan"]: row["us"] for row in result["overlap"]}
    best = min(time for plan, time in us.items() if STEP.fullmatch(plan))
    before = us["in sequence, NCCL"]
    measured = f"{before / best:.2f} times faster ({best:.0f} us and {before:.0f} us)"
    return [
        ("a GEMM and an all-reduce of 256 MiB in each step, sustained", "1.37 times faster than in sequence", measured)
    ]


def missing_ranks(result: Result) -> list[Row]:
    *rows, afterwards = result["missing-ranks"]
    late = max(max(row["error after s"]) - row["timeout_s"] for row in rows)
    works = "the GPUs worked afterwards" if all(afterwards["right"]) else "the GPUs did not work afterwards"
    measured = f"within `timeout_s` + {max(late, 0):.1f} s in {len(rows)} cases; {works}"
    what = "a rank that dies or never comes"
    return [(what, "an error on every other rank within `timeout_s` + 2 s, GPUs usable afterwards", measured)]


# What is measured, on how many GPUs, and in which part of the benchmark.
TARGETS: list[tuple[int, str, Callable[[Result], list[Row]]]] = [
    (4, "sweep", small_messages),
    (4, "sweep", early_launches),
    (2, "sweep", large_all_reduce),
    (2, "sweep", few_sms),
    (4, "sweep", few_sms),
    (2, "autotune", autotune),
    (4, "autotune", autotune),
    (2, "overlap", overlap),
    (4, "overlap", overlap),
    (2, "missing-ranks", missing_ranks),
]


def rows_of(results: Sequence[Result]) -> list[list[str]]:
    """The rows of the table, its head first: of each part, the last result that has it."""
    table = [["what", "target", "measured", "on"]]
    for gpus, part, rows in TARGETS:
        having = [one for one in results if one.get(part) and one["_what"].startswith(f"Collectives on {gpus} GPUs")]
        for result in reversed(having):
            where = f"{gpus} {result['card'].removeprefix('NVIDIA ').split()[0]}s, {result['date']}"
            if found := [[*row, where] for row in rows(result)]:
                table += found
                break
    return table
