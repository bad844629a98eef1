"""Programs in a part: the SM counts that they read, and where their work runs. They know nothing of the package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cuda_gctx.interpose import InterposeError
from cuda_software_driver import library_folder

from ..common import needs_cuda_header
from .common import BEGIN, NUMBA, answers, compiled, part_environment, run_in_part

pytestmark = pytest.mark.sim_only


@pytest.mark.parametrize(("name", "sms"), [("control", 16), ("rest", 116)])
def test_the_part_is_the_device(name: str, sms: int) -> None:
    code = """
print(ask(cu.cuDeviceGetAttribute(SMS, device)))
context = use()
print(sms_of(context), sms_of(ask(cu.cuCtxGetCurrent())))
print(ask(cu.cuDeviceGetDevResource(device, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)).sm.smCount)
"""
    assert answers(code, name=name).split() == [str(sms)] * 4


def test_parts_of_two_programs_are_the_groups_of_one_split() -> None:
    code = """
import ctypes
context = use()
resource = ask(cu.cuCtxGetDevResource(context, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
print(bytes((ctypes.c_ubyte * 92).from_address(resource.getPtr() + 4)).hex())
"""
    assert answers(code, name="control") != answers(code, name="rest", layout="control=16,rest=16")


@pytest.mark.parametrize(
    ("layout", "name", "sms"),
    [
        ("control=0.25,rest", "control", 32),
        ("a=16,b=32,c=8", "b", 32),
        ("a=16,b=32,c=8", "background", 76),
        ('{"schema": 2, "partitions": [{"name": "a", "options": {"count": 10, "backfill": true}}]}', "a", 10),
    ],
)
def test_every_form_of_layout_has_its_part(layout: str, name: str, sms: int) -> None:
    assert answers("print(sms_of(use()))", layout, name) == str(sms)


def test_a_layout_without_a_background_partition_has_none_for_programs() -> None:
    with pytest.raises(InterposeError, match="has no background partition: rest takes all remaining SMs"):
        part_environment("control=16,rest", "background")


def test_a_layout_that_does_not_fit_is_an_error_with_a_sentence() -> None:
    done = run_in_part(
        [sys.executable, "-c", BEGIN + "print(cu.cuDevicePrimaryCtxRetain(device)[0].name)"],
        part_environment("control=200,rest"),
    )
    assert done.stdout == "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\n"
    assert "partition control of device 0 cannot be opened" in done.stderr
    assert done.stderr.count("cannot be opened") == 1


def test_a_driver_without_green_contexts_is_an_error_with_a_sentence() -> None:
    done = run_in_part(
        [sys.executable, "-c", BEGIN + "print(int(cu.cuDevicePrimaryCtxRetain(device)[0]) != 0)"],
        part_environment(machine="h200@12.3"),
    )
    assert done.stdout == "True\n"
    assert "green contexts need CUDA driver 12.4 or newer" in done.stderr


def test_no_green_context_is_reported_that_the_program_did_not_create() -> None:
    code = """
context = use()
stream = ask(cu.cuStreamCreate(1))
print(int(ask(cu.cuStreamGetCtx(stream))) == int(context), int(ask(cu.cuStreamGetGreenCtx(stream))))
memory = ask(cu.cuMemAlloc(64))
print(int(ask(cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT, memory))) == int(context))
"""
    assert answers(code).split() == ["True", "0", "True"]


def test_every_way_to_ask_for_the_context_answers_the_retained_one() -> None:
    code = """
context = use()
contexts = [ask(cu.cuCtxGetCurrent()), ask(cu.cuDevicePrimaryCtxRetain(0))]
ask(cu.cuCtxPushCurrent(context))
contexts.append(ask(cu.cuCtxPopCurrent()))
streams = [*map(cu.CUstream, range(3)), ask(cu.cuStreamCreate(0)), ask(cu.cuStreamCreateWithPriority(1, -1))]
contexts += [ask(cu.cuStreamGetCtx(stream)) for stream in streams]
contexts += [ask(cu.cuStreamGetCtx_v2(stream))[0] for stream in streams]
memory = ask(cu.cuMemAlloc(64))
contexts += ask(cu.cuPointerGetAttributes(1, [cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT], memory))
ask(cu.cuStreamBeginCapture(streams[-1], cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
launch(streams[-1])
graph = ask(cu.cuStreamEndCapture(streams[-1]))
parameters = ask(cu.cuGraphKernelNodeGetParams(ask(cu.cuGraphGetNodes(graph, 1))[0][0]))
contexts.append(parameters.ctx)
print(len(contexts), {int(context) for context in contexts} == {int(context)})
"""
    assert answers(code).split() == ["15", "True"]


def test_grids_that_fill_the_device_fill_the_part() -> None:
    code = """
use()
library = ask(cu.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
kernel = cu.CUfunction(int(ask(cu.cuLibraryGetKernel(library, b"k"))))
blocks = ask(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, 256, 0))
print(ask(cu.cuOccupancyMaxPotentialBlockSize(kernel, 0, 0, 256))[0] / blocks)
print(ask(cu.cuOccupancyMaxPotentialBlockSizeWithFlags(kernel, 0, 0, 256, 0))[0] / blocks)
config = cu.CUlaunchConfig()
config.gridDimX, config.gridDimY, config.gridDimZ = 2, 1, 1
config.blockDimX, config.blockDimY, config.blockDimZ = 256, 1, 1
cluster = cu.CUlaunchAttribute()
cluster.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = 2, 1, 1
config.attrs, config.numAttrs = [cluster], 1
print(2 * ask(cu.cuOccupancyMaxActiveClusters(kernel, config)) / blocks)
"""
    assert answers(code).split() == ["16.0"] * 3


def test_what_the_program_splits_stays_inside() -> None:
    code = """
use()
whole = ask(cu.cuDeviceGetDevResource(device, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
groups, count, rest = ask(cu.cuDevSmResourceSplitByCount(1, whole, 0, 8))
green = ask(cu.cuGreenCtxCreate(ask(cu.cuDevResourceGenerateDesc([groups[0]], 1)), device, 1))
inner = ask(cu.cuCtxFromGreenCtx(green))
ask(cu.cuCtxSetCurrent(inner))
print(sms_of(inner), rest.sm.smCount, int(ask(cu.cuCtxGetCurrent())) == int(inner))
stream = ask(cu.cuGreenCtxStreamCreate(green, 1, 0))
print(int(ask(cu.cuStreamGetGreenCtx(stream))) == int(green))
"""
    assert answers(code).split() == ["8", "8", "True", "True"]


def test_the_package_works_inside_of_a_part() -> None:
    code = """
from cuda_gctx import Device
with Device().partition(a=8, b=None) as parts:
    print(Device().resources.sm.sm_count, parts.a.sm_count, parts.b.sm_count)
"""
    assert answers(code).split() == ["16", "8", "8"]


def test_a_wait_for_the_part_covers_contexts_inside() -> None:
    code = """
context = use()
whole = ask(cu.cuDeviceGetDevResource(device, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
groups, count, rest = ask(cu.cuDevSmResourceSplitByCount(1, whole, 0, 8))
green = ask(cu.cuGreenCtxCreate(ask(cu.cuDevResourceGenerateDesc([groups[0]], 1)), device, 1))
stream = ask(cu.cuGreenCtxStreamCreate(green, 1, 0))
launch(stream)
print(is_done(stream))
ask(cu.cuCtxSynchronize())
print(is_done(stream))
launch(stream)
event = ask(cu.cuEventCreate(0))
ask(cu.cuCtxRecordEvent(context, event))
ask(cu.cuEventSynchronize(event))
print(is_done(stream))
launch(stream)
ask(cu.cuCtxSynchronize_v2(context))
print(is_done(stream))
outer = ask(cu.cuStreamCreate(1))
launch(outer)
ask(cu.cuEventRecord(event, outer))
ask(cu.cuCtxWaitEvent(context, event))
launch(stream, 1)
ask(cu.cuStreamSynchronize(stream))
print(is_done(outer))
"""
    assert answers(code).split() == ["False"] + ["True"] * 4


@pytest.mark.parametrize("flags", [0, 1])
def test_the_null_stream_and_blocking_streams_wait_for_each_other(flags: int) -> None:
    code = f"""
use()
NULL = cu.CUstream(0)
stream = ask(cu.cuStreamCreate({flags}))
launch(stream)
event = ask(cu.cuEventCreate(0))
ask(cu.cuEventRecord(event, NULL))
ask(cu.cuEventSynchronize(event))
print(is_done(stream))
ask(cu.cuCtxSynchronize())
launch(NULL)
ask(cu.cuEventRecord(event, stream))
ask(cu.cuEventSynchronize(event))
print(is_done(NULL))
ask(cu.cuCtxSynchronize())
memory = ask(cu.cuMemAlloc(64))
launch(stream)
ask(cu.cuMemcpyDtoH(bytearray(64), memory, 64))
print(is_done(stream))
launch(stream)
ask(cu.cuStreamDestroy(stream))
print(is_done(NULL))
"""
    blocking = flags == 0
    assert answers(code).split() == [str(blocking)] * 3 + [str(not blocking)]


@pytest.mark.parametrize("stream", ["cu.CUstream(2)", "ask(cu.cuStreamCreate(0))"])
def test_the_first_use_of_a_stream_waits_for_the_null_stream(stream: str) -> None:
    code = f"""
use()
launch(cu.CUstream(0))
event = ask(cu.cuEventCreate(0))
ask(cu.cuEventRecord(event, {stream}))
ask(cu.cuEventSynchronize(event))
print(is_done(cu.CUstream(0)))
"""
    assert answers(code) == "True"


def test_a_capture_of_a_blocking_stream_is_left_alone() -> None:
    code = """
use()
stream = ask(cu.cuStreamCreate(0))
launch(stream)
ask(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
launch(cu.CUstream(0))
launch(stream)
graph = ask(cu.cuStreamEndCapture(stream))
print(ask(cu.cuGraphGetNodes(graph, 8))[1])
"""
    assert answers(code) == "1"


def test_each_thread_has_a_stream_of_its_own() -> None:
    code = """
import threading
use()
OWN = cu.CUstream(2)
ids = []
def work():
    context = use()
    ids.append(ask(cu.cuStreamGetId(OWN)))
    launch(OWN)
    print(sms_of(ask(cu.cuStreamGetCtx(OWN))), is_done(OWN))
    ask(cu.cuStreamSynchronize(OWN))
    print(is_done(OWN))
work()
thread = threading.Thread(target=work)
thread.start(); thread.join()
print(len(set(ids)))
# The stream of an ended thread serves another one. Threads of the system end later than join() returns.
while len(ids) == len(set(ids)) and len(ids) < 1000:
    thread = threading.Thread(target=lambda: [use(), ids.append(ask(cu.cuStreamGetId(OWN)))])
    thread.start(); thread.join()
print("again", len(set(ids)) < len(ids))
launch(OWN)
event = ask(cu.cuEventCreate(0))
ask(cu.cuEventRecord(event, cu.CUstream(0)))
ask(cu.cuEventSynchronize(event))
print("ordered", is_done(OWN))
"""
    one = ["16", "False", "True"]
    assert answers(code).split() == [*one, *one, "2", "again", "True", "ordered", "True"]


# A copy of a program whose default stream is that of the thread, next to work of another thread.
COPY_OF_A_THREAD = """
#define CUDA_API_PER_THREAD_DEFAULT_STREAM
#include <cuda.h>
int copy_here(CUdeviceptr memory, void *host) { return cuMemcpyDtoH(host, memory, 64); }
int fill_here(CUdeviceptr memory) { return cuMemsetD8(memory, 1, 64); }
int wait_here(void) { return cuStreamSynchronize(0); }
"""


@needs_cuda_header
def test_copies_of_one_thread_do_not_wait_for_the_stream_of_another_one(tmp_path: Path) -> None:
    compiled(tmp_path / "copies.so", COPY_OF_A_THREAD, "-shared", "-fPIC")
    code = f"""
import ctypes, threading
use()
ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
copies = ctypes.CDLL({str(tmp_path / "copies.so")!r})
memory, host = ask(cu.cuMemAlloc(64)), (ctypes.c_ubyte * 64)()
other = ask(cu.cuStreamCreate(1))
def work():
    use()
    launch(cu.CUstream(2), 10_000_000)
    stream.append(ask(cu.cuStreamGetId(cu.CUstream(2))))
    busy.set(), done.wait()
    print(is_done(cu.CUstream(2)))
stream, busy, done = [], threading.Event(), threading.Event()
thread = threading.Thread(target=work)
thread.start(); busy.wait()
print(copies.fill_here(ctypes.c_uint64(int(memory))), copies.copy_here(ctypes.c_uint64(int(memory)), host), host[0])
done.set(); thread.join()
print(copies.wait_here())
"""
    assert answers(code).split() == ["0", "0", "1", "False", "0"]


def test_a_reset_works_and_the_device_can_be_used_again() -> None:
    code = """
context = use()
ask(cu.cuMemAlloc(64))
launch(cu.CUstream(2))
print(cu.cuDevicePrimaryCtxReset(device)[0].name)
print(sms_of(use()), cu.cuMemAlloc(64)[0].name)
launch(cu.CUstream(2))
ask(cu.cuStreamSynchronize(cu.CUstream(2)))
ask(cu.cuCtxSetCurrent(context))
print(sms_of(ask(cu.cuCtxGetCurrent())), cu.cuDevicePrimaryCtxReset(device)[0].name)
# As the primary context, the part is current again once it is retained.
ask(cu.cuDevicePrimaryCtxRetain(device))
print(sms_of(ask(cu.cuCtxGetCurrent())), cu.cuMemAlloc(64)[0].name)
"""
    assert answers(code).split() == ["CUDA_SUCCESS", "16", "CUDA_SUCCESS", "16", "CUDA_SUCCESS", "16", "CUDA_SUCCESS"]


def test_no_context_is_created_on_devices_that_the_program_does_not_use() -> None:
    code = """
print(ask(cu.cuDeviceGetAttribute(SMS, 1)))
use(1)
print(sms_of(ask(cu.cuCtxGetCurrent())), [ask(cu.cuDevicePrimaryCtxGetState(number))[1] for number in range(3)])
"""
    assert answers(code, machine="h200@13.0,devices=3") == "16\n16 [0, 1, 0]"


def test_a_reset_of_a_device_that_was_not_used_creates_no_context() -> None:
    code = """
import ctypes, json
driver = ctypes.CDLL("libcuda.so.1")
driver.softwareDriverCalls.restype = ctypes.c_char_p
print(cu.cuDevicePrimaryCtxReset(0)[0].name, "cuDevicePrimaryCtxRetain" in json.loads(driver.softwareDriverCalls()))
"""
    assert answers(code) == "CUDA_SUCCESS False"


def test_a_context_of_the_program_is_passed_on_and_strict_refuses_it() -> None:
    code = "answer = cu.cuCtxCreate(None, 0, device)\nprint(answer[0].name, sms_of(ask(cu.cuCtxGetCurrent())))"
    assert answers(code) == "CUDA_SUCCESS 132"
    refused = run_in_part(
        [sys.executable, "-c", BEGIN + "print(cu.cuCtxCreate(None, 0, device)[0].name)"],
        part_environment(CUDA_GCTX_STRICT="1"),
    )
    assert refused.stdout == "CUDA_ERROR_NOT_PERMITTED\n"
    assert "called cuCtxCreate, whose context would use all SMs" in refused.stderr


def test_a_program_without_a_part_is_left_alone() -> None:
    environment = part_environment()
    del environment["CUDA_GCTX_PART"]
    done = run_in_part(
        [sys.executable, "-c", BEGIN + "print(ask(cu.cuDeviceGetAttribute(SMS, device)), sms_of(use()))"], environment
    )
    assert done.stdout == "132 132\n", done.stderr


def test_children_are_in_the_part(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(BEGIN + "print(sms_of(use()))")
    code = """
import os, subprocess, sys
if os.fork() == 0:
    subprocess.run([sys.executable, "child.py"])
    os._exit(0)
os.wait()
"""
    assert run_in_part([sys.executable, "-I", "-c", code], part_environment(), tmp_path).stdout == "16\n"


def test_a_forked_child_opens_the_part_itself() -> None:
    # The parent opens the library, and leaves the driver to the child.
    begin = "import ctypes, os\nctypes.CDLL('libcuda.so.1')\nif os.fork() > 0: os._exit(os.wait()[1])\n"
    done = run_in_part([sys.executable, "-c", f"{begin}{BEGIN}print(sms_of(use()))"], part_environment())
    assert (done.stdout, done.returncode) == ("16\n", 0), done.stderr


# Asks for the SM count through a library whose name decides what the library is told.
ASKER = """
#include <cuda.h>
int count(void) {
  int sms = 0;
  cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
  return sms;
}
"""


# A program in C that is linked with the driver.
LINKED = """
#include <cuda.h>
#include <stdio.h>
int main(void) {
  int sms = 0;
  CUcontext context, current;
  CUdevResource resource;
  CUstream stream;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cuCtxGetCurrent(&current) ||
      cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0) ||
      cuCtxGetDevResource(current, &resource, CU_DEV_RESOURCE_TYPE_SM) || cuStreamCreate(&stream, 0) ||
      cuStreamSynchronize(stream) || cuDevicePrimaryCtxReset(0)) {
    return 1;
  }
  printf("%d %u\\n", sms, resource.sm.smCount);
  return 0;
}
"""


@needs_cuda_header
@pytest.mark.parametrize("options", [[], ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"]])
def test_a_program_in_c_runs_in_the_part(tmp_path: Path, options: list[str]) -> None:
    folder = library_folder()
    program = compiled(tmp_path / "linked", LINKED, *options, "-L", folder, "-lcuda", f"-Wl,-rpath,{folder}")
    done = run_in_part([program], part_environment())
    assert (done.stdout, done.returncode) == ("16 16\n", 0), done.stderr


# A program of the CUDA runtime, without its header, which needs more packages: the SM count, copies on the NULL stream,
# a blocking stream and the stream of the thread, and two resets.
RUNTIME = """
#include <stdio.h>
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int cudaStreamCreate(void **), cudaStreamSynchronize(void *), cudaDeviceGetAttribute(int *, int, int);
int cudaMemcpyAsync_ptsz(void *, const void *, size_t, int, void *), cudaStreamSynchronize_ptsz(void *);
int cudaDeviceReset(void), cudaGetLastError(void);
static int copied(void *stream) {
  int found = 0, value = 7;
  void *device;
  cudaMalloc(&device, sizeof value);
  COPY(device, &value, sizeof value, 1, stream);
  COPY(&found, device, sizeof value, 2, stream);
  WAIT(stream);
  cudaFree(device);
  return found;
}
int main(void) {
  int sms = 0;
  void *stream;
  cudaDeviceGetAttribute(&sms, 16, 0);
  cudaStreamCreate(&stream);
  printf("%d %d %d %d ", sms, copied(0), copied(stream), copied((void *)2));
  printf("%d ", cudaDeviceReset());
  printf("%d ", copied(0));
  printf("%d %d\\n", cudaDeviceReset(), cudaGetLastError());
  return 0;
}
"""


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_a_program_of_the_runtime_runs_in_the_part(tmp_path: Path, suffix: str) -> None:
    names = [f"-DCOPY=cudaMemcpyAsync{suffix}", f"-DWAIT=cudaStreamSynchronize{suffix}"]
    folder = library_folder()
    program = compiled(tmp_path / "runtime", RUNTIME, *names, f"{folder}/libcudart.so.13", f"-Wl,-rpath,{folder}")
    done = run_in_part([program], part_environment())
    assert (done.stdout, done.returncode) == ("16 7 7 7 0 7 0 0\n", 0), done.stderr


def test_numba_runs_in_the_part() -> None:
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed", exc_type=ImportError)
    assert answers(NUMBA) == "16 1024"


def test_cuda_core_runs_in_the_part() -> None:
    code = """
from cuda.core import Device
device = Device(0)
device.set_current()
stream = device.create_stream()
print(device.properties.multiprocessor_count, sms_of(ask(cu.cuStreamGetCtx(cu.CUstream(int(stream.handle))))))
stream.sync()
"""
    assert answers(code) == "16 16"


@needs_cuda_header
@pytest.mark.parametrize(
    ("library", "sms"), [("libcublasLt.so.13", 132), ("libcublas.so.13", 132), ("libother.so", 16)]
)
def test_cublas_reads_the_sm_count_of_the_card(tmp_path: Path, library: str, sms: int) -> None:
    compiled(tmp_path / library, ASKER, "-shared", "-fPIC")
    code = f"import ctypes\nask(cu.cuInit(0))\nprint(ctypes.CDLL({str(tmp_path / library)!r}).count())"
    code = f"import ctypes\nctypes.CDLL('libcuda.so.1', mode=ctypes.RTLD_GLOBAL)\n{code}"
    assert answers(code) == str(sms)
