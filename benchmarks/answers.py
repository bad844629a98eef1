"""Tables of what cards answered to tests/hardware/questions.py and processes.py. The first row is the head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Result = dict[str, Any]
Rows = list[list[str]]


def _answer(result: Result, question: str) -> dict[str, Any]:
    answer: dict[str, Any] = result["answers"].get(question) or {}
    return answer


def _ended(answer: Mapping[str, Any]) -> str:
    """Why there is no answer."""
    return str(answer.get("ended") or answer.get("killed after") or "no answer")


def _yes(value: object) -> str:
    return "yes" if value else "no"


def locks(result: Result) -> Rows:
    """Two partitions that run one layer at once."""
    answer = _answer(result, "shared_locks")
    rows = [["the two partitions have", "`check` says before", "all rounds end", "results are right"]]
    for name in ("locks of their own", "the same locks"):
        if name in answer:
            row = answer[name]
            said = "; ".join(f"{kind}: {one}, {other}" for kind, one, other, _ in row["check says before"])
            right = _yes(row["right"]) if "right" in row else ""
            after = answer.get("rounds before the hang")
            ends = "yes" if row.get("ends") else f"no: they hang after {after}"
            rows.append([name, said or "nothing is shared", ends, right])
    return rows if len(rows) > 1 else []


def variables(result: Result) -> Rows:
    """How often a kernel has run before, by a variable of its library."""
    answer = _answer(result, "library_variables")
    rows = [["the kernel is run", "in turn in", "and returns"]]
    for key, what in (("launched", "by launches"), ("one graph", "by one graph, moved")):
        if key in answer:
            rows.append([what, ", ".join(name for name, _ in answer[key]), ", ".join(str(n) for _, n in answer[key])])
    return rows if len(rows) > 1 else []


def nccl(result: Result) -> Rows:
    """The current context after a call that was made under a green context."""
    answer = _answer(result, "nccl_context")
    calls = ("ncclCommInitRank", "init_process_group", "new_group(part)")
    rows = [[f"called under a green context, NCCL {answer.get('NCCL')}", "current after it"]]
    return rows + [[f"`{call}`", answer[call]] for call in calls if call in answer] if answer else []


def inductor(result: Result) -> Rows:
    """The grids of persistent GEMMs."""
    answer = _answer(result, "inductor_grids")
    rows = [["persistent GEMM of Inductor, 16 SMs inside", "blocks", "right"]]
    for name, row in answer.items():
        if isinstance(row, dict) and "grids" in row:
            blocks = ", ".join(str(grid[0] * grid[1] * grid[2]) for _, grid in row["grids"]) or "none was seen"
            rows.append([name, blocks, _yes(row["right"])])
    return rows if len(rows) > 1 else []


def ctas(result: Result) -> Rows:
    """The SMs that a collective keeps."""
    answer = _answer(result, "one_cta")
    rows = [[f"communicator, NCCL {answer.get('NCCL')}", "blocks of its kernel", "SMs that it keeps"]]
    for name, row in answer.items():
        if isinstance(row, dict) and "SMs" in row:
            blocks = ", ".join(str(grid[0] * grid[1] * grid[2]) for _, grid in row["grids"])
            rows.append([name, blocks, str(row["SMs"])])
    return rows if len(rows) > 1 else []


def run_as(result: Result) -> Rows:
    """The SMs of a torch program under run --as."""
    answer = _answer(result, "run_as")
    rows = [["work of torch, `--as decode` with 16 SMs", "SMs seen"]]
    return rows + [[name, str(count)] for name, count in answer["SMs"].items()] if "SMs" in answer else []


def at_once(result: Result) -> Rows:
    """Two processes that run a long kernel at the same time."""
    runs = {"without MPS, a partition each": _answer(result, "turns")}
    runs |= {
        f"MPS, {name}": run
        for name, run in _answer(result, "mps").items()
        if isinstance(run, dict) and "at once, ms" in run
    }
    rows = [["two processes", "SMs reported", "SM ids seen", "blocks that had to wait", "ran at once, ms", "of, ms"]]
    for name, run in runs.items():
        both = [one for one in run.values() if isinstance(one, dict) and "reported" in one]
        if len(both) == 2:
            words = [" and ".join(str(one[key]) for one in both) for key in ("reported", "SMs", "late blocks")]
            rows.append([name, *words, *(f"{run[key]:.0f}" for key in ("at once, ms", "in all, ms"))])
    return rows if len(rows) > 1 else []


def products(result: Result) -> Rows:
    """GEMMs compared with the same in fp32."""
    runs: dict[str, Any] = {f"a partition of {k}": v for k, v in _answer(result, "products_in_partitions").items()}
    runs |= {f"MPS, {name}": one for name, one in _answer(result, "mps").get("products", {}).items()}
    rows = [["GEMMs in fp16 and bf16", "number", "wrong", "of those repeated, other bits", "elements wrong in fp32"]]
    for name, one in runs.items():
        if "products" in one:
            wrong = sum(sum(map(bool, row[-1])) for row in one["wrong"])
            numbers = (one["products"], wrong, one["not the same again"], one["wrong in fp32"])
            rows.append([name, *map(str, numbers)])
    return rows if len(rows) > 1 else []


QUESTIONS = {
    "of shared locks": locks,
    "of library variables": variables,
    "of nccl contexts": nccl,
    "of inductor grids": inductor,
    "of nccl ctas": ctas,
}
PROCESSES = {"of run as": run_as, "of processes at once": at_once, "of products": products}
