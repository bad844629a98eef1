"""Mutants of the C++ core and of its Cython modules: each writes back a fault that was found once, and dies.

    python tests/native_mutants.py [NAME...]        or: make native-mutants

builds a copy of the sources in build/mutants (minutes the first time), and for each mutant compiles what it changes and
runs what is about it: a test, a test of the C++ core ("ctest NAME"), or random programs of the whole API ("machine").
Prints what failed, and exits with 1 if a mutant survived. Mutants of files of Python are those of tests/mutants.py.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from tests.common import CUDA_INCLUDE
from tests.mutants import LIMIT_S, Mutant, failed_test

REPOSITORY = Path(__file__).parents[1]
WORK = REPOSITORY / "build" / "mutants"
SOURCES, BUILD, PACKAGE = WORK / "src", WORK / "build", WORK / "package"
MACHINE = "tests/trust/test_state_machine.py -k random_programs"
OPERATIONS = "10000"
HANDLES = "_cpp/handles"
CURRENT, BLOCKS, ENTRIES = f"{HANDLES}/current.cpp", f"{HANDLES}/current.hpp", f"{HANDLES}/entries.cpp"

MUTANTS = {
    # A context is destroyed while it is current.
    "what was set in a block is let go before the pop": Mutant(
        ENTRIES,
        "  std::optional<ContextStack> stack;\n  bool is_known",
        "  for (Entry* entry = top; entry != remaining; entry = entry->below_) {\n"
        "    if (const ContextHandle set = std::move(entry->set_)) {\n"
        "      set->state().make_not_current();\n"
        "    }\n"
        "  }\n"
        "  std::optional<ContextStack> stack;\n  bool is_known",
        MACHINE,
    ),
    "a block lets its context go before the pop": Mutant(
        BLOCKS,
        "  failed_pop = driver.cuCtxPopCurrent(&popped);",
        "  box.state().make_not_current<has_lock>();\n"
        "  usleep(300);\n"
        "  (void)box.state().make_current<has_lock>();\n"
        "  failed_pop = driver.cuCtxPopCurrent(&popped);",
        "ctest stress_test",
    ),
    "what other code has pushed something on counts as replaced": Mutant(
        ENTRIES,
        "return std::count(places.begin(), places.end(), context->handle()) > by_others;",
        "return !places.empty() && places.back() == context->handle() && by_others == 0;",
        MACHINE,
    ),
    "a context below other code's push is closed": Mutant(
        CURRENT, "if (found != places.end() && context.handle() != places.back()", "if (false && found != places.end()",
        "tests/core/test_blocks.py tests/core/test_context.py tests/core/test_current.py",
    ),
    "the place of a block is found by its handle": Mutant(
        ENTRIES,
        "places[at] == entry.shown() && (entry.is_set() || below(at) == entry.before_);",
        "places[at] == entry.shown();",
        "tests/core/test_blocks.py",
    ),
    "what was set is looked for above blocks": Mutant(
        ENTRIES, "most = at > least ? std::min(most, at - 1) : most;", "", "tests/core/test_block_model.py",
    ),
    "what was current before is put back twice": Mutant(
        ENTRIES, "(found != places.rend() && has_owner(before, block.below_))", "false",
        "tests/core/test_block_model.py",
    ),
    # The interpreter ends while a call fails.
    "a failure is raised before the GIL is back": Mutant(
        "_core/call.hpp",
        "    failure = std::current_exception();\n  }\n  std::apply(",
        "    failure = std::current_exception();\n    PyGILState_Release(PyGILState_Ensure());\n  }\n  std::apply(",
        "tests/core/test_exit.py -k calls_that_fail",
    ),
    # Tasks.
    "all tasks of a thread are one": Mutant(
        "_core/current.pyx", "return state->context;", "return (void*)state;", MACHINE
    ),
    "set_current in another task's block": Mutant(
        CURRENT,
        "  context->demand_there();\n  demand_task(task);",
        "  context->demand_there();\n  (void)task;",
        MACHINE,
    ),
    "a context whose push failed counts as current": Mutant(
        BLOCKS,
        '    box.state().make_not_current();\n    failed = {&driver, result, "cuCtxPushCurrent"};',
        '    failed = {&driver, result, "cuCtxPushCurrent"};',
        "tests/core/test_current.py",
    ),
    # Forks, and the GIL.
    "a driver that is opened is not in use": Mutant(
        f"{HANDLES}/runtime.cpp",
        "    begin_use();\n    opening().lock();",
        "    opening().lock();",
        "tests/core/test_fork.py",
    ),
    "handles are dropped with the GIL": Mutant(
        "_core/call.hpp",
        "(each.let_go(), ...); }, holds);\n  PyEval_RestoreThread(thread);",
        "(void)sizeof...(each); }, holds);\n  PyEval_RestoreThread(thread);\n"
        "  std::apply([](auto&... each) { (each.let_go(), ...); }, holds);",
        "tests/core/test_every_call.py",
    ),
    # What frameworks have seen.
    "pinned contexts are never dropped": Mutant(
        f"{HANDLES}/owned_context.cpp", "    dropped.swap(pinned_);", "    (void)pinned_;", MACHINE
    ),
    "there is no limit of pinned contexts": Mutant(
        f"{HANDLES}/owned_context.cpp", "if (seen >= limit) {", "if (seen >= limit && limit == 0) {",
        "tests/partitions/test_pinned.py",
    ),
    "a pinned context is destroyed": Mutant(
        f"{HANDLES}/owned_context.cpp", "    if (is_pinned && !is_closed_ && one.has_anything()) {",
        "    if (is_pinned && !is_closed_ && !one.has_anything()) {", "tests/partitions/test_pinned.py",
    ),
    # Captures.
    "a stream is closed while it captures": Mutant(
        f"{HANDLES}/stream.cpp", "  if (stream->is_needed_by_capture()) {", "  if (stream == nullptr) {", MACHINE
    ),
    "a stream that is dropped takes its capture along": Mutant(
        f"{HANDLES}/stream.cpp",
        "  if (is_needed_by_capture()) {\n    context()->keep();",
        "  if (false) {\n    context()->keep();",
        "tests/core/test_objects.py",
    ),
    # The ends of threads, failures of the driver, and resets.
    "what a thread made current outlives it": Mutant(
        "_core/current.pyx", '        (<dict>PyThreadState_GetDict())["cuda_gctx"] = end\n', "", MACHINE
    ),
    "a stack that cannot be read is put together as it is": Mutant(
        f"{HANDLES}/stack.cpp", "  return answer == CUDA_SUCCESS || call() == CUDA_SUCCESS;",
        "  return answer == CUDA_SUCCESS;", "tests/trust/test_fault_sweep.py tests/core/test_all_or_nothing.py",
    ),
    "objects of a device that was reset are used": Mutant(
        f"{HANDLES}/child.hpp",
        "void demand_live() const { context()->demand_there(); }",
        "void demand_live() const {}",
        "tests/core/test_context.py tests/core/test_waiting.py -k reset",
    ),
    # Counting.
    "a context is destroyed with a use left": Mutant(
        f"{HANDLES}/state.hpp",
        "const bool last = phase_of(word) == Phase::closed && left % one_current == 0;",
        "const bool last = phase_of(word) == Phase::closed && left % one_current <= 1;",
        MACHINE,
    ),
    "a context is closed while it is current elsewhere": Mutant(
        f"{HANDLES}/state.hpp", "if ((word & current_mask) != 0) {", "if (false) {", MACHINE
    ),
    "a block lets go of nothing": Mutant(
        BLOCKS, "  box.state().make_not_current<has_lock>();", "", MACHINE
    ),
    "a graph does not keep its context": Mutant(
        f"{HANDLES}/graph.cpp", "std::make_shared<GraphBox>(stream->use())",
        "std::make_shared<GraphBox>(ContextUse(primary_context(stream->context()->runtime(), 0)))", MACHINE,
    ),
}  # fmt: skip


def prepare() -> None:
    """The package of the sources as they are, in a folder of its own."""
    SOURCES.mkdir(parents=True, exist_ok=True)
    for name in ("cuda_gctx", "cmake", "CMakeLists.txt"):
        source, copy = REPOSITORY / name, SOURCES / name
        files = [file for file in source.rglob("*") if file.is_file()] if source.is_dir() else [source]
        for file in files:
            target = copy / file.relative_to(source) if source.is_dir() else copy
            if "__pycache__" not in file.parts and (not target.exists() or target.read_bytes() != file.read_bytes()):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CUDA_GCTX_CUDA_INCLUDE": CUDA_INCLUDE,
        "Python_EXECUTABLE": sys.executable,
        "SKBUILD_SOABI": sysconfig.get_config_var("SOABI"),
    }
    defined = [f"-D{name}={value}" for name, value in options.items()]
    subprocess.run(["cmake", "-G", "Ninja", "-S", SOURCES, "-B", BUILD, *defined], check=True, capture_output=True)


def build(*targets: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["cmake", "--build", BUILD, *(f"--target={target}" for target in targets)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def install() -> None:
    shutil.rmtree(PACKAGE, ignore_errors=True)
    subprocess.run(["cmake", "--install", BUILD, "--prefix", PACKAGE], check=True, capture_output=True)
    shutil.copytree(
        SOURCES / "cuda_gctx", PACKAGE / "cuda_gctx", dirs_exist_ok=True, ignore=shutil.ignore_patterns("_cpp")
    )


def killed_by(mutant: Mutant) -> str | None:
    """What fails with the mutant; None if it survives."""
    file = SOURCES / "cuda_gctx" / mutant.file
    text = file.read_text()
    file.write_text(text.replace(mutant.old, mutant.new))
    try:
        ctest = mutant.tests.removeprefix("ctest ") if mutant.tests.startswith("ctest ") else None
        done = build(*([ctest] if ctest is not None else []))
        if done.returncode != 0:
            print(f"it does not compile:\n{done.stdout[-1000:]}")
            return None
        if ctest is not None:
            run = ["ctest", "--no-tests=error", "--test-dir", BUILD, "-R", f"^{ctest}$", "--timeout", str(LIMIT_S)]
            return None if subprocess.run(run, capture_output=True, check=False).returncode == 0 else mutant.tests
        install()
        return failed_test(mutant.tests, PACKAGE, CUDA_GCTX_OPERATIONS=OPERATIONS, CUDA_GCTX_SHRINK_TRIES="0")
    finally:
        file.write_text(text)


def misfits(mutants: Mapping[str, Mutant]) -> list[str]:
    """The mutants that do not apply: their text has changed or their file has moved."""
    package = REPOSITORY / "cuda_gctx"
    counts = {name: (package / mutant.file).read_text().count(mutant.old) for name, mutant in mutants.items()}
    return [
        f"{name}: {mutants[name].file} has {count} times: {mutants[name].old}"
        for name, count in counts.items()
        if count != 1
    ]


def run(mutants: Mapping[str, Mutant]) -> int:
    """Tries mutants, and prints what each died of: 1 if one survived."""
    if found := misfits(mutants):
        raise SystemExit("these mutants do not apply:\n" + "\n".join(found))
    prepare()
    done = build()
    if done.returncode != 0:
        raise SystemExit(done.stdout[-3000:])
    install()
    if (test := failed_test(MACHINE, PACKAGE, CUDA_GCTX_OPERATIONS="1000")) is not None:
        raise SystemExit(f"without a mutant, {test} fails")
    survivors = 0
    for name, mutant in mutants.items():
        test = killed_by(mutant)
        survivors += test is None
        print(f"{name:62} {'SURVIVED' if test is None else test}", flush=True)
    return 1 if survivors else 0


def main() -> int:
    return run({name: mutant for name, mutant in MUTANTS.items() if name in (sys.argv[1:] or MUTANTS)})


if __name__ == "__main__":
    sys.exit(main())
