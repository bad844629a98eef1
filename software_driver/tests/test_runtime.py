"""The CUDA runtime of the package: C programs that link it, and programs of nvcc."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cuda_software_driver as sim

from .common import CUDA_INCLUDE, PROJECT, needs_cuda_header

PROGRAMS = Path(__file__).resolve().parent / "runtime"
NVCC = shutil.which("nvcc")
LIBRARY = Path(sim.library_folder()) / "libcudart.so.13"

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="there is no nvcc: pip install nvidia-cuda-nvcc")


def execute(program: Path, driver: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cuda_software_driver", "run", "--driver", driver, *options, "--", str(program)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def compiled(name: str, folder: Path) -> Path:
    program = folder / name
    includes = [f"-I{CUDA_INCLUDE}", f"-I{PROJECT / 'cpp' / 'runtime'}"]
    libraries = [str(LIBRARY), f"-Wl,-rpath-link,{LIBRARY.parent}"]
    command = ["cc", "-Wall", "-Werror", *includes, str(PROGRAMS / f"{name}.c"), *libraries, "-o", str(program)]
    subprocess.run(command, check=True, timeout=120)
    return program


def compiled_by_nvcc(name: str, folder: Path, *options: str) -> Path:
    program = folder / name
    # nvcc 13.0 has no execution contexts: header and library are those of the newer runtime.
    command = [str(NVCC), "-cudart", "none", f"-Xlinker={LIBRARY}", "-arch", "sm_75", "-o", str(program), *options]
    subprocess.run([*command, str(PROGRAMS / f"{name}.cu"), f"-I{CUDA_INCLUDE}"], check=True, timeout=300)
    return program


OUTPUT = {
    "memory": """\
2 devices, NVIDIA H200 (simulated), 9.0, 132 SMs, 13
device 1, memory of type 2 on 1, 1, 0
-1 0 1 -1
0 4 8 14
cudaErrorInvalidPitchValue
cudaErrorInvalidMemcpyDirection
cudaErrorInvalidMemcpyDirection
cudaErrorInvalidMemcpyDirection
cudaSuccess
cudaErrorInvalidDevice
invalid device function, unrecognized error code
cudaErrorInvalidValue
""",
    "kernels": """\
13 13
30 30, 7 of 4 bytes
cudaErrorInvalidValue
cudaErrorInvalidSymbol
add: 1024 threads at most, 2 blocks
cudaErrorInvalidValue
cudaErrorInvalidDeviceFunction
210 0
""",
    "streams": """\
cudaErrorNotReady, cudaErrorNotReady, 8, 1 call, time passed
3 nodes, 8
the kernel, 33, 2 calls
""",
    "contexts": """\
132 = 16 + 116, 16
16, 116, 0 in both
device 0, two contexts
cudaErrorInvalidValue
""",
}


@needs_cuda_header
@needs_compiler
@pytest.mark.parametrize("driver", ["13.0", "13.5"])
@pytest.mark.parametrize("name", OUTPUT)
def test_program_of_c_runs(name: str, driver: str, tmp_path: Path) -> None:
    done = execute(compiled(name, tmp_path), driver, "--devices", "2")
    assert done.stdout == OUTPUT[name], done.stderr
    assert done.returncode == 0


@needs_cuda_header
@needs_compiler
def test_absent_function_names_itself_once(tmp_path: Path) -> None:
    done = execute(compiled("absent", tmp_path), "13.0")
    assert done.stdout.split() == ["cudaSuccess"] + 3 * ["cudaErrorNotSupported"]
    assert done.stderr.count("cudaImportExternalMemory is not modelled") == 1


@needs_cuda_header
@needs_compiler
def test_driver_before_13_is_insufficient(tmp_path: Path) -> None:
    assert execute(compiled("absent", tmp_path), "12.9").stdout.split() == 4 * ["cudaErrorInsufficientDriver"]


def test_every_name_of_the_runtime_has_its_version() -> None:
    names = re.findall(r"CUDART_NAME\((\w+)\)", (PROJECT / "cpp" / "runtime" / "names.def").read_text())
    library = ctypes.CDLL(str(LIBRARY))
    find = ctypes.CDLL(None).dlvsym
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    assert len(names) == 458
    assert [name for name in names if not find(library._handle, name.encode(), b"libcudart.so.13")] == []


@needs_nvcc
@pytest.mark.parametrize("default_stream", ["legacy", "per-thread"])
def test_program_of_nvcc_computes_in_two_partitions(default_stream: str, tmp_path: Path) -> None:
    done = execute(compiled_by_nvcc("partitions", tmp_path, "-default-stream", default_stream), "13.1")
    assert done.stdout == "sum 204798 on 16 SMs\nsum 204798 on 16 SMs\n800 blocks, 0 SMs in both\n", done.stderr


@needs_nvcc
def test_host_and_kernels_of_two_devices_share_a_managed_variable(tmp_path: Path) -> None:
    done = execute(compiled_by_nvcc("managed", tmp_path), "13.1", "--devices", "2")
    assert (done.returncode, done.stdout) == (0, "5\n37 9801\n37 1\n"), done.stderr
