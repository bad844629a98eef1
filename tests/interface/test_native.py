"""Programs in C, C++, Cython and Rust against the installed package, and what its library exports."""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import cuda_gctx
from cuda_gctx import Device
from cuda_software_driver import library_folder, library_path

from ..cli.test_command_line import run as command
from ..common import CUDA_INCLUDE, leases
from ..conftest import REPOSITORY

EXAMPLES = REPOSITORY / "examples" / "native"
CXX = shutil.which("c++") or shutil.which("g++")
needs_compiler = pytest.mark.skipif(CXX is None, reason="needs a C++ compiler")
needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")
SIZES = "16 SMs, a stream\n116 SMs, a stream\n"
REST = 2**32 - 1
DRIVERS = ["sim:h200@12.4", "sim:h200@13.4"]


PACKAGE = Path(cuda_gctx.__file__).parent
FOLDER = Path(cuda_gctx.get_include()).parent  # in an editable install, what was compiled is elsewhere
LIBRARY = FOLDER / "libcuda_gctx.so"
# C programs find the software driver next to the package; an editable install keeps the two apart.
SOFTWARE_DRIVER = {} if Path(library_path()).is_relative_to(FOLDER.parent) else {"CUDA_SOFTWARE_DRIVER": library_path()}
LINKED = [f"-L{FOLDER}", "-lcuda_gctx", f"-Wl,-rpath,{FOLDER}"]


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **SOFTWARE_DRIVER, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(sources: Path, folder: Path) -> None:
    driver_library = Path(library_folder()) / "libcuda.so.1"
    given = [f"-DCUDA_INCLUDE={CUDA_INCLUDE}", f"-DCUDA_DRIVER={driver_library}"]
    run("cmake", "-S", sources, "-B", folder, f"-DCMAKE_PREFIX_PATH={cuda_gctx.get_include()}", *given)
    run("cmake", "--build", folder)


@needs_compiler
@needs_cmake
def test_c_and_cpp_by_cmake(tmp_path: Path) -> None:
    build(EXAMPLES, tmp_path)
    for driver in DRIVERS:
        assert run(tmp_path / "two_streams", CUDA_GCTX_DRIVER=driver) == SIZES
        lines = run(tmp_path / "operators", CUDA_GCTX_DRIVER=driver).splitlines()
        assert lines[:3] == ["detector: 32 SMs, a stream", "tracker: 16 SMs, a stream", "viewer: 84 SMs, a stream"]
        assert lines[3].startswith("error 7: 'detector' (32 SMs) may share SMs with 'detector' (32 SMs)")


@needs_compiler
@needs_cmake
def test_a_control_loop_misses_deadlines_only_without_a_reservation(tmp_path: Path) -> None:
    for name in ("control_loop.cpp", "CMakeLists.txt"):  # a user copies these two files
        shutil.copy(EXAMPLES / name, tmp_path)
    build(tmp_path, tmp_path / "build")
    machine = {"LD_LIBRARY_PATH": library_folder(), "CUDA_SOFTWARE_DRIVER_MACHINE": "h200@13.0"}
    program = tmp_path / "build" / "control_loop"
    line = r"{}: {} SMs for the loop, p50 \d+ us, p99 (\d+) us, missed (\d+) of 100\n"
    reserved = re.fullmatch(line.format("reserved", 16), run(program, **machine))
    without = re.fullmatch(line.format("without", 132), run(program, "--without", **machine))
    assert reserved is not None
    assert without is not None
    # A step takes 50 us, its deadline is 200 us, and a block of the bulk work takes 1100 us.
    assert int(reserved[1]) < 100
    assert int(reserved[2]) == 0
    assert int(without[2]) > 50


@needs_compiler
def test_headers_compile_without_a_warning(tmp_path: Path) -> None:
    assert CXX is not None
    for name, text, flags in [
        ("one.cpp", "cuda_gctx.hpp", ["-std=c++17"]),
        ("one.c", "cuda_gctx.h", ["-x", "c", "-std=c99", "-Wstrict-prototypes"]),
        ("driver.cpp", "cuda_gctx_driver.hpp", ["-std=c++17", "-isystem", str(CUDA_INCLUDE)]),
    ]:
        (tmp_path / name).write_text(f"#include <{text}>\nint one(void);\nint one(void) {{ return gctx_version(); }}\n")
        warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wconversion"]
        run(CXX, *flags, *warnings, "-fsyntax-only", f"-I{cuda_gctx.get_include()}", tmp_path / name)


@needs_compiler
@pytest.mark.skipif(find_spec("Cython") is None, reason="needs Cython")
def test_cython(tmp_path: Path) -> None:
    assert CXX is not None
    source = tmp_path / "two_streams.c"
    run(sys.executable, "-m", "cython", "-3", "-I", PACKAGE.parent, "-o", source, EXAMPLES / "two_streams.pyx")
    python = sysconfig.get_paths()["include"]
    module = tmp_path / f"two_streams{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-O0", "-fPIC", "-shared", f"-I{python}", f"-I{cuda_gctx.get_include()}"]
    run(CXX, "-x", "c", *flags, source, "-o", module, "-x", "none", *LINKED)
    # In one process with the package, whose driver and contexts it shares.
    program = """
import cuda_gctx, two_streams
print(two_streams.sizes(16), cuda_gctx.Device(0).sm_count)
try:
    two_streams.sizes(140)
except RuntimeError as error:
    print(error)
"""
    for driver in DRIVERS:
        lines = run(sys.executable, "-c", program, PYTHONPATH=str(tmp_path), CUDA_GCTX_DRIVER=driver).splitlines()
        assert lines[0] == "[16, 116] 132"
        assert lines[1].startswith("cannot split groups of [140] SMs off 132 SMs")


@pytest.mark.skipif(shutil.which("rustc") is None, reason="needs rustc")
def test_rust(tmp_path: Path) -> None:
    program = tmp_path / "two_streams"
    libraries = ["-L", FOLDER, "-l", "cuda_gctx", "-C", f"link-arg=-Wl,-rpath,{FOLDER}"]
    run("rustc", EXAMPLES / "two_streams.rs", "-D", "warnings", "-o", program, *libraries)
    for driver in DRIVERS:
        assert run(program, CUDA_GCTX_DRIVER=driver) == "16 SMs\n116 SMs\n"


def declared() -> set[str]:
    text = (Path(cuda_gctx.get_include()) / "cuda_gctx.h").read_text()
    return set(re.findall(r"^GCTX_API [\w *]*?(gctx_\w+)\(", text, re.MULTILINE))


def test_the_declarations_for_cython_are_those_of_the_header() -> None:
    text = (PACKAGE / "native" / "c.pxd").read_text()
    assert set(re.findall(r"\b(gctx_\w+)\(", text)) == declared()


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm, of GNU binutils")
def test_the_library_exports_the_interface_and_what_the_modules_import() -> None:
    versions: dict[str, set[str]] = {}
    for line in run("nm", "-D", "--defined-only", "--with-symbol-versions", LIBRARY).splitlines():
        name, _, version = line.split()[2].partition("@@")
        versions.setdefault(version, set()).add(name)
    assert versions.pop("CUDA_GCTX_1") == declared()
    internal = versions.pop("CUDA_GCTX_INTERNAL")
    assert set().union(*versions.values()) <= {"CUDA_GCTX_1", "CUDA_GCTX_INTERNAL"}
    modules = [path for path in FOLDER.rglob("*.so") if not path.name.startswith("lib")]
    imported = run("nm", "-D", "--undefined-only", "--without-symbol-versions", *modules).split()
    assert internal <= set(imported)


class Group(ctypes.Structure):
    _fields_ = [("sm_count", ctypes.c_uint), ("coscheduled", ctypes.c_uint), ("backfill", ctypes.c_int)]


@pytest.fixture
def native(dev: Device) -> Any:
    """The C interface, on the driver that the package has open."""
    loaded = ctypes.CDLL(str(LIBRARY))
    for name in ("gctx_context_handle", "gctx_stream_handle"):
        getattr(loaded, name).restype = ctypes.c_void_p
    loaded.gctx_last_error.restype = ctypes.c_char_p
    return loaded


def partition(native: Any, *counts: int, exclusive: int = 0) -> list[Any]:
    groups = (Group * len(counts))(*(Group(count) for count in counts))
    made = (ctypes.c_void_p * len(counts))()
    assert native.gctx_partition(0, groups, None, len(counts), exclusive, made) == 0, native.gctx_last_error(None)
    return [ctypes.c_void_p(one) for one in made]


def create_stream(native: Any, context: Any) -> Any:
    stream = ctypes.c_void_p()
    assert native.gctx_create_stream(context, 0, ctypes.byref(stream)) == 0
    return stream


def test_a_stream_keeps_its_context_alive(native: Any) -> None:
    contexts = partition(native, 16, REST)
    stream = create_stream(native, contexts[0])
    adopted = cuda_gctx.Stream.from_handle(native.gctx_stream_handle(stream))
    assert adopted.resources.sm.sm_count == native.gctx_context_sm_count(contexts[0]) == 16
    for context in contexts:
        assert native.gctx_close_context(context) == 0
    adopted.sync()
    adopted.close()
    native.gctx_close_stream(stream)


def test_a_context_that_is_current_stays_open(native: Any, dev: Device) -> None:
    [context] = partition(native, 16)
    with cuda_gctx.Context.from_handle(native.gctx_context_handle(context)).current():
        assert native.gctx_close_context(context) == 5
        assert b"cannot be closed while it is current" in native.gctx_last_error(None)
    native.gctx_close_stream(create_stream(native, context))
    assert native.gctx_close_context(context) == 0


def test_a_group_is_split_again_and_contexts_take_several(native: Any) -> None:
    whole, rest, again = ctypes.c_void_p(), ctypes.c_void_p(), (ctypes.c_void_p * 2)()
    assert native.gctx_device(0, ctypes.byref(whole)) == 0
    assert native.gctx_sm_count(whole) == 132
    first = (ctypes.c_void_p * 1)()
    assert native.gctx_split(whole, (Group * 1)(Group(64)), 1, first, ctypes.byref(rest)) == 0
    group = ctypes.c_void_p(first[0])
    assert [native.gctx_sm_count(group), native.gctx_sm_count(rest)] == [64, 68]
    assert native.gctx_split(group, (Group * 2)(Group(16), Group(0)), 2, again, None) == 0
    context = ctypes.c_void_p()
    assert native.gctx_create_context(again, 2, b"both", 1, ctypes.byref(context)) == 0, native.gctx_last_error(None)
    assert native.gctx_context_sm_count(context) == sum(native.gctx_sm_count(ctypes.c_void_p(one)) for one in again)
    assert native.gctx_close_context(context) == 0
    for sms in [whole, rest, group, *map(ctypes.c_void_p, again), None]:
        native.gctx_close_sms(sms)


def test_errors_have_a_number_and_a_message(native: Any) -> None:
    result, made = ctypes.c_int(), (ctypes.c_void_p * 1)()
    for number, call, words in [
        (4, lambda: native.gctx_device(7, made), b"there is no device 7"),
        (4, lambda: native.gctx_device(0, None), b"sms is NULL"),
        (4, lambda: native.gctx_partition(0, (Group * 1)(), None, 0, 0, made), b"count is 0"),
        (6, lambda: native.gctx_partition(0, (Group * 1)(Group(140)), None, 1, 0, made), b"cannot split"),
        (4, lambda: native.gctx_partition(0, (Group * 2)(Group(8)), None, 2, 0, made), b"request 1 is for 0 SMs"),
        (4, lambda: native.gctx_partition(0, (Group * 1)(Group(REST, 8)), None, 1, 0, made), b"takes no other option"),
        (4, lambda: native.gctx_partition(0, (Group * 2)(*[Group(REST)] * 2), None, 2, 0, made), b"a second GCTX_REST"),
        (
            6,
            lambda: native.gctx_partition(0, (Group * 2)(Group(132, 2), Group(REST)), None, 2, 0, made),
            b"none remain",
        ),
        (4, lambda: native.gctx_sync_stream(None), b"stream is NULL"),
        (4, lambda: native.gctx_create_event(None, 0, made), b"context is NULL"),
        (4, lambda: native.gctx_create_stream(None, 0, made), b"context is NULL"),
    ]:
        assert call() == number
        assert words in native.gctx_last_error(ctypes.byref(result))
        assert not made[0]
    assert native.gctx_close_context(None) == 0
    assert native.gctx_version() == 2


def test_all_contexts_of_a_partition_are_made_or_none(sim: Any) -> None:
    machine = sim("h200")
    loaded = ctypes.CDLL(str(LIBRARY))
    loaded.gctx_last_error.restype = ctypes.c_char_p
    machine.fail("cuGreenCtxCreate", nth=2)
    made, result = (ctypes.c_void_p * 2)(), ctypes.c_int()
    assert loaded.gctx_partition(0, (Group * 2)(Group(16), Group(REST)), None, 2, 0, made) == 1
    assert b"cuGreenCtxCreate" in loaded.gctx_last_error(ctypes.byref(result))
    assert result.value == 2
    assert not any(made)
    assert leases() == 0


def test_the_interfaces_give_the_same_sms_for_the_same_layout(native: Any, dev: Device) -> None:
    """One planner: Python, the command line, C, and so C++."""
    rng = random.Random(61)
    for _ in range(30):
        counts: list[int | None] = [rng.randrange(1, 70) for _ in range(rng.randrange(0, 4))]
        counts.insert(rng.randrange(len(counts) + 1), None)
        words = ["rest" if count is None else str(count) for count in counts]
        named = [f"p{place}={word}" for place, word in enumerate(words)]
        planned = command("plan", *named, "--json")
        groups = (Group * len(counts))(*(Group(REST if count is None else count) for count in counts))
        made = (ctypes.c_void_p * len(counts))()
        answer = native.gctx_partition(0, groups, None, len(counts), 0, made)
        contexts = [ctypes.c_void_p(one) for one in made if one]
        found = [native.gctx_context_sm_count(one) for one in contexts]
        for one in contexts:
            assert native.gctx_close_context(one) == 0
        try:
            with dev.partition(*counts) as parts:
                expected = [part.sm_count for part in parts]
        except cuda_gctx.SplitError:
            assert (answer, planned.exit_code != 0) == (6, True), counts
            continue
        assert (answer, planned.exit_code, found) == (0, 0, expected), counts
        assert [one["sm_count"] for one in json.loads(planned.stdout)["partitions"]][: len(counts)] == expected


def test_events_order_streams_and_measure(native: Any) -> None:
    contexts = partition(native, 16, REST)
    streams = [create_stream(native, one) for one in contexts]
    events = [ctypes.c_void_p() for _ in range(2)]
    for event in events:
        assert native.gctx_create_event(contexts[0], 1, ctypes.byref(event)) == 0
    done, milliseconds = ctypes.c_int(), ctypes.c_float(-1)
    assert native.gctx_record_event(streams[0], events[0]) == 0
    assert native.gctx_wait_event(streams[1], events[0]) == 0
    assert native.gctx_wait_stream(streams[0], streams[1]) == 0
    assert native.gctx_record_event(streams[0], events[1]) == 0
    assert native.gctx_sync_event(events[1]) == 0
    assert native.gctx_event_is_done(events[1], ctypes.byref(done)) == 0
    assert done.value == 1
    assert native.gctx_elapsed_ms(*events, ctypes.byref(milliseconds)) == 0
    assert milliseconds.value >= 0
    for stream in streams:
        assert native.gctx_sync_stream(stream) == 0
        assert native.gctx_stream_is_done(stream, ctypes.byref(done)) == 0
        assert done.value == 1
        native.gctx_close_stream(stream)
    for event in events:
        native.gctx_close_event(event)
    for context in contexts:
        assert native.gctx_close_context(context) == 0
