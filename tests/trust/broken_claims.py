"""Claims of the pages, each broken in the code: the tests that the ledger names for it fail.

    python tests/trust/broken_claims.py [BEGINNING...]

The claims were chosen by `random.Random(42)` of the 123 in the ledger on 2026-11-24 (claims.json, and the tables of
tests/docs/test_guarantees.py): thirty of the first 36, without those that need a GPU or torch. Each takes as long as a
build of what it changes, and its tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

from tests import native_mutants
from tests.docs.test_guarantees import EXCEPTIONS, SHARING
from tests.mutants import Mutant
from tests.trust.test_claims import held

HANDLES, RESOURCES = "_cpp/handles", "_cpp/resources"

# The beginning of the claim, and how it is broken: file, old text, new text.
BREAKS = {
    "`ResourceOverlapError`": (f"{HANDLES}/live.cpp", "if (exclusive_ || only_free) {", "if (only_free) {"),
    "They give the same bits, on every rank.": (
        "comm/_kernels/guard.cuh",
        "sums.of[one] = add(sums.of[one], more.of[one]);",
        "sums.of[one] = add(more.of[one], more.of[one]);",
    ),
    "work of PyTorch in": ("interop/torch.py", "            inner.wait_stream(outer)\n", "            pass\n"),
    "A `Device` is a cheap value": (
        f"{HANDLES}/stream.cpp",
        "    CurrentScope scope(context);\n",
        "    struct {\n      void leave() {}\n    } scope;\n",
    ),
    "| `count=None` without alignment": (
        f"{RESOURCES}/request.cpp", "all_.push_back(need);", "all_.push_back(need);\n  total_ += need.count ? 0 : 8;",
    ),
    "| `ValueError`, `TypeError` |": (
        "_core/arguments.pyx", "least is not None and number < least)", "least is not None and number < least - 1)",
    ),
    "- A foreign handle is in a box": (
        f"{HANDLES}/stream.cpp", "  if (!owned_) {\n    return;\n  }\n  context()->streams().remove",
        "  context()->streams().remove",
    ),
    "Processes do not see": ("partitions/layout.py", "zip(self.names, self.specs, strict=True)",
                                  "zip(self.names, self.specs[::-1], strict=True)"),
    "- One of three ranks on two GPUs died": (
        "comm/_kernels/guard.cuh", "report(call, FAULT_TIMEOUT, source, epoch);",
        "report(call, FAULT_TIMEOUT, call.rank, epoch);",
    ),
    "`ClosedError`": ("_core/errors.pyx", "class ClosedError(RuntimeError):", "class ClosedError(Exception):"),
    "A block that another task": (
        f"{HANDLES}/current.cpp",
        "  if (!is_same_task) {",
        "  if (!is_same_task && task == nullptr) {",
    ),
    "`close()` of a stream that is part of a capture": (
        f"{HANDLES}/stream.cpp", "  if (stream->is_needed_by_capture()) {", "  if (stream == nullptr) {",
    ),
    "A plan that never comes within 15%": ("tune/_ranking.py", "HOPELESS = 1.15", "HOPELESS = 9.15"),
    "Input and output must be mapped": (
        "comm/_protocol.py", "{block_bytes} {is_staged}", "{block_bytes}",
    ),
    "a cuBLAS workspace": (
        "interop/sharing.py", "thing.workspace + max(1, thing.workspace_bytes)", "thing.workspace + 1",
    ),
    "The steps of a split work on every driver": (
        "compat/torch_green.py", "SMPartition(remainder) if remainder.sm_count else None", "SMPartition(remainder)",
    ),
    "**What a framework has seen is never destroyed.**": (
        f"{HANDLES}/owned_context.cpp", "    if (is_pinned && !is_closed_ && one.has_anything()) {",
        "    if (is_pinned && !is_closed_ && !one.has_anything()) {",
    ),
    "Closing twice does nothing": (
        "_core/context.pyx",
        "            return\n        if box.get().kind() == cpp.ContextKind.primary:",
        '            raise RuntimeError("closed")\n        if box.get().kind() == cpp.ContextKind.primary:',
    ),
    "If the interpreter ends during a driver call": (
        "_core/call.hpp",
        "    failure = std::current_exception();\n  }\n  std::apply(",
        "    failure = std::current_exception();\n    PyGILState_Release(PyGILState_Ensure());\n  }\n  std::apply(",
    ),
    "`parts.verify()`": (
        "partitions/verification.py",
        "known_clusters(device),\n    )\n    if report.problems:",
        "known_clusters(device),\n    )\n    if False:",
    ),
    "An exception in `__enter__`": (
        f"{HANDLES}/current.hpp",
        '    box.state().make_not_current();\n    failed = {&driver, result, "cuCtxPushCurrent"};',
        '    failed = {&driver, result, "cuCtxPushCurrent"};',
    ),
    "## The same request on all of them": (
        f"{RESOURCES}/request.cpp",
        "request.coscheduled : grain.alignment;",
        "request.coscheduled : 2 * grain.alignment;",
    ),
    "`ResourceOverlapWarning`": (
        f"{HANDLES}/live.cpp", "owner = live->exclusive_ ? &live->names_[at] : owner;", "owner = nullptr;",
    ),
    "`DriverNotFound`": ("_core/errors.pyx", "class DriverNotFound(CUDAError):", "class DriverNotFound(Exception):"),
    "`ForkedError`": (
        "_cpp/driver/process.cpp", "    process_state_word.store(ProcessState::forked);", "    begin_exit();",
    ),
    "- A layout means the same on every driver": (
        f"{RESOURCES}/request.cpp",
        "request.coscheduled != 0 ? request.coscheduled",
        "request.coscheduled > 2 ? request.coscheduled",
    ),
    "a cuBLAS or cuDNN handle": (
        "interop/sharing.py",
        '_Found("cuBLAS handle", place, thing.handle)',
        '_Found("cuBLAS handle", place, id(place))',
    ),
    "A forked child": ("_cpp/driver/process.cpp", "  if (uses.load() != 0) {", "  if (uses.load() > 99) {"),
    "Two groups of one split never overlap": (
        f"{RESOURCES}/sm_resource.cpp",
        "  if (const auto known = overlap_by_origin(a, b)) {",
        "  if (const auto known = overlap_by_origin(a, b); known && false) {",
    ),
    "locks and counters": ("interop/sharing.py", "(^|_)(locks?|workspaces?", "(^|_)(clocks?|workspaces?"),
}  # fmt: skip


def ledger() -> dict[str, list[str]]:
    """The beginning of each claim that has tests, and its tests."""
    found = [(begin, tests) for claims in held().values() for begin, tests in claims.items() if isinstance(tests, list)]
    found += [(begin, list(tests)) for rows in (EXCEPTIONS, SHARING) for begin, tests in rows.items() if tests]
    return dict(found)


def mutants() -> dict[str, Mutant]:
    chosen = ledger()
    of = {begin: next(one for one in chosen if one.startswith(begin)) for begin in BREAKS}
    names = {begin: " ".join(f"tests/{one.removesuffix('::')}" for one in chosen[claim]) for begin, claim in of.items()}
    return {begin: Mutant(*change, names[begin]) for begin, change in BREAKS.items()}


def main() -> int:
    chosen = mutants()
    wanted = [name for name in chosen if not sys.argv[1:] or any(name.startswith(one) for one in sys.argv[1:])]
    return native_mutants.run({name: chosen[name] for name in wanted})


if __name__ == "__main__":
    sys.exit(main())
