"""The library under the driver's own names: programs that are linked with it or open it, and functions it lacks."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cuda_software_driver as sim

from .common import CUDA_INCLUDE, needs_cuda_header

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "cpp" / "abi" / "make_tables.py"


def environment(spec: str = "h200@13.0") -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": sim.library_folder(), "CUDA_SOFTWARE_DRIVER_MACHINE": spec}


def run_program(code: str, spec: str = "h200@13.0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=environment(spec), capture_output=True, text=True, timeout=60, check=True
    )


@pytest.mark.skipif(shutil.which("nm") is None, reason="there is no nm")
def test_libraries_show_no_names_of_the_cpp_library() -> None:
    shown = {}
    for library in sorted(Path(sim.library_folder()).iterdir()):
        listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
        shown[library.name] = [line.split()[-1] for line in listed.stdout.splitlines() if line.split()[-1][0] == "_"]
    # The compiler calls these of the runtime.
    calls_of_nvcc = [name for name in shown["libcudart.so.13"] if name.startswith("__cuda")]
    assert {name: wrong for name, wrong in shown.items() if wrong} == {"libcudart.so.13": calls_of_nvcc}


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so"])
def test_a_program_opens_it_by_either_name(name: str) -> None:
    code = f"""
import ctypes
driver = ctypes.CDLL({name!r})
version = ctypes.c_int()
print(driver.cuInit(0), driver.cuDriverGetVersion(ctypes.byref(version)), version.value)
print(ctypes.CDLL("libcuda.so.1")._handle == driver._handle)
"""
    assert run_program(code).stdout.split() == ["0", "0", "13000", "True"]


def test_an_error_inside_is_caught_where_a_program_opens_it_by_the_drivers_name() -> None:
    """The loader hides the library from the unwinder there: exceptions ended such programs."""
    code = 'import ctypes; print(ctypes.CDLL("libcuda.so.1").cuInit(0))'
    found = run_program(code, "nonsense")
    assert found.stdout == "100\n"
    assert "no card 'nonsense' is modelled" in found.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_program_is_linked_with_it(tmp_path: Path) -> None:
    source = tmp_path / "program.c"
    source.write_text("int cuInit(unsigned); int main(void) { return cuInit(0); }")
    program = tmp_path / "program"
    subprocess.run(["cc", source, "-o", program, f"-L{sim.library_folder()}", "-lcuda"], check=True)
    assert subprocess.run([program], env=environment(), timeout=60).returncode == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_program_in_c_controls_the_machine(tmp_path: Path) -> None:
    source = tmp_path / "program.c"
    source.write_text("""
#include <cuda_software_driver.h>
int main(void) {
  char error[200];
  if (softwareDriverConfigure("b200@13.1", error, sizeof error) != 0) return 1;
  return softwareDriverErrorCode("CUDA_ERROR_NOT_READY") != 600;
}
""")
    program, folder = tmp_path / "program", Path(sim.library_folder())
    options = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{folder.parent / 'include'}"]
    subprocess.run(["cc", *options, source, "-o", program, f"-L{folder}", "-lcuda_software_driver"], check=True)
    assert subprocess.run([program], env=environment(), timeout=60).returncode == 0


def test_errors_say_what_the_driver_says() -> None:
    code = """
import ctypes
driver, text = ctypes.CDLL("libcuda.so.1"), ctypes.c_char_p()
for number in (1, 101, 400, 700, 719):
    driver.cuGetErrorString(number, ctypes.byref(text))
    print(text.value.decode())
"""
    assert run_program(code).stdout.splitlines() == [
        "invalid argument",
        "invalid device ordinal",
        "invalid resource handle",
        "an illegal memory access was encountered",
        "unspecified launch failure",
    ]


def test_a_function_that_is_not_modelled_names_itself_once() -> None:
    code = """
import ctypes, json
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
print([driver.cuMemMapArrayAsync(None, 0, None) for _ in range(2)])
ledger = ctypes.CDLL("libcuda_software_driver.so").softwareDriverLedger
ledger.restype = ctypes.c_char_p
print(ledger().decode())
"""
    done = run_program(code)
    answers, ledger = done.stdout.splitlines()
    assert json.loads(answers) == [801, 801]
    assert done.stderr.count("cuMemMapArrayAsync is not modelled: CUDA_ERROR_NOT_SUPPORTED") == 1
    assert json.loads(ledger)["absent"] == {"cuMemMapArrayAsync": 2}


@pytest.mark.parametrize(
    ("spec", "name", "version", "found"),
    [
        ("h200@13.0", b"cuMemAllocManaged", 13000, True),
        ("h200@13.0", b"cuLaunchHostFunc", 13000, True),
        ("h200@13.0", b"cuDevSmResourceSplit", 13000, False),
        ("h200@13.0", b"cuNoSuchFunction", 13000, False),
        ("h200@13.1", b"cuDevSmResourceSplit", 13010, True),
    ],
)
def test_addresses_are_given_to_whom_the_version_fits(spec: str, name: bytes, version: int, found: bool) -> None:
    code = f"""
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
for flags in (0, 1, 2):
    address, status = ctypes.c_void_p(), ctypes.c_int()
    driver.cuGetProcAddress_v2({name!r}, ctypes.byref(address), {version}, ctypes.c_uint64(flags), ctypes.byref(status))
    print(bool(address))
"""
    assert run_program(code, spec).stdout.split() == [str(found)] * 3


def test_the_default_stream_of_a_thread_is_its_own() -> None:
    code = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
context, number = ctypes.c_void_p(), ctypes.c_uint64()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
def stream_id(function, stream=None):
    function(ctypes.c_void_p(stream), ctypes.byref(number))
    return number.value
address, status = ctypes.c_void_p(), ctypes.c_int()
driver.cuGetProcAddress_v2(b"cuStreamGetId", ctypes.byref(address), 13000, ctypes.c_uint64(2), ctypes.byref(status))
own = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(address.value)
PER_THREAD = 2
print(stream_id(own) == stream_id(driver.cuStreamGetId, PER_THREAD) == stream_id(driver.cuStreamGetId_ptsz))
print(stream_id(driver.cuStreamGetId) == stream_id(driver.cuStreamGetId, PER_THREAD))
"""
    assert run_program(code).stdout.split() == ["True", "False"]


@needs_cuda_header
def test_every_name_that_the_header_declares_is_exported() -> None:
    """A program linked with a missing name would end in the loader."""
    header = subprocess.run(
        ["c++", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-x", "c++", f"{CUDA_INCLUDE}/cuda.h"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    driver = ctypes.CDLL(sim.library_path())
    names = set(re.findall(r"CUresult\s+(cu\w+)\s*\(", header))
    assert {"cuMemcpyBatchAsync_ptsz", "cuStreamWaitValue32_ptsz"} < names
    assert sorted(name for name in names if not hasattr(driver, name)) == []


def test_it_says_of_its_private_tables_that_there_are_none() -> None:
    code = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
table = ctypes.c_void_p(1)
print(driver.cuGetExportTable(ctypes.byref(table), ctypes.create_string_buffer(16)), table.value)
"""
    assert run_program(code).stdout.split() == ["500", "None"]


RUNTIME = next((CUDA_INCLUDE.parent / "lib").glob("libcudart.so.13"), None) if CUDA_INCLUDE else None


@pytest.mark.skipif(RUNTIME is None, reason="there is no runtime library of CUDA 13 next to cuda.h")
@pytest.mark.parametrize(("driver", "name"), [("12.8", "InsufficientDriver"), ("13.0", "SymbolNotFound")])
def test_the_runtime_library_does_not_start_and_says_why(driver: str, name: str) -> None:
    code = f"""
import ctypes
runtime = ctypes.CDLL({str(RUNTIME)!r})
runtime.cudaGetErrorName.restype = ctypes.c_char_p
print(runtime.cudaGetErrorName(runtime.cudaGetDeviceCount(ctypes.byref(ctypes.c_int()))).decode())
"""
    assert run_program(code, f"h200@{driver}").stdout == f"cudaError{name}\n"


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ preprocessor")
@needs_cuda_header
def test_the_tables_of_functions_follow_from_the_header() -> None:
    subprocess.run([sys.executable, str(TABLES), "--check"], check=True)


def test_no_bytes_of_a_pool_have_no_address() -> None:
    with sim.session("h200"):
        driver = ctypes.CDLL(str(Path(sim.library_folder()) / "libcuda_software_driver.so"))
        driver.cuInit(0)
        context, stream, address = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(1)
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        driver.cuCtxPushCurrent_v2(context)
        driver.cuStreamCreate(ctypes.byref(stream), 1)
        assert driver.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(0), stream) == 0
        assert address.value == 0
        assert driver.cuMemFreeAsync(address, stream) == 0
        driver.cuStreamDestroy_v2(stream)
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        driver.cuDevicePrimaryCtxRelease_v2(0)


def test_per_thread_variants_do_what_the_function_does() -> None:
    with sim.session("h200"):
        driver = ctypes.CDLL(str(Path(sim.library_folder()) / "libcuda_software_driver.so"))
        driver.cuInit(0)
        context, address, word = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        driver.cuCtxPushCurrent_v2(context)
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4)) == 0
        assert driver.cuStreamWriteValue32_v2_ptsz(None, address, 7, 0) == 0
        assert driver.cuStreamWaitValue32_v2_ptsz(None, address, 7, 0) == 0
        assert driver.cuStreamSynchronize_ptsz(None) == 0
        assert driver.cuMemcpyDtoH_v2(ctypes.byref(word), address, ctypes.c_size_t(4)) == 0
        assert word.value == 7
        assert driver.cuMemcpy3DBatchAsync_ptsz() == 801, "what is not modelled says so"
        assert driver.cuMemFree_v2(address) == 0
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        driver.cuDevicePrimaryCtxRelease_v2(0)
