"""Other code has left a part of the device to this thread or process: partitions divide that part."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import cuda_software_driver
from cuda_gctx import (
    Context,
    Device,
    PartitionPool,
    Partitions,
    ResourceOverlapError,
    ResourceOverlapWarning,
    SplitError,
)
from cuda_gctx.interop.mps import granted
from cuda_gctx.partitions import with_background

from ..common import green, needs_cuda_header, refusal, run_python, split
from ..raw import Probe, Raw


@contextmanager
def foreign_part(dev: Device, sms: int = 40) -> Iterator[int]:
    """A green context of other code is current."""
    raw = Raw()
    with raw.green_context(sms) as context:
        raw.push(context)
        try:
            yield context
        finally:
            raw.pop()


def counts(parts: Partitions) -> list[int]:
    return [part.sm_count for part in with_background(parts)]


def test_a_foreign_context_that_is_current_is_what_partitions_divide(dev: Device) -> None:
    with Probe(dev) as probe, foreign_part(dev) as context:
        allowed = probe.sms(Context.from_handle(context))
        with dev.partition(a=8, b=None) as parts:
            assert counts(parts) == [8, 32]
            a, b = (probe.sms(part.context) for part in parts)
            assert not a & b
            assert a | b == allowed
        assert (granted(dev).by, granted(dev).sm_count) == ("current context", 40)
        granted(dev).demand()
    with dev.partition(a=8, b=None) as parts:
        assert counts(parts) == [8, dev.sm_count - 8]
    assert granted(dev).by == "device"


def test_the_background_and_free_sms_are_inside_of_the_part(dev: Device) -> None:
    with foreign_part(dev):
        with dev.partition(a=16) as parts:
            assert counts(parts) == [16, 24]
        with dev.partition(a=16, among="free") as first, dev.partition(b=24, among="free", exclusive=True) as second:
            assert counts(first) + counts(second) == [16, 24]
            assert refusal(SplitError, lambda: dev.partition(c=8, among="free"))
            assert refusal(ResourceOverlapError, lambda: dev.partition(c=8, exclusive=True))
        with dev.partition(a=0.5, b=None) as parts:
            assert counts(parts) == [16, 24]


def test_a_request_that_fits_the_device_alone_is_refused_with_the_size_of_the_part(dev: Device) -> None:
    with foreign_part(dev):
        assert "40 SMs" in str(refusal(SplitError, lambda: dev.partition(a=64)))


def test_a_context_of_the_package_that_is_current_changes_nothing(dev: Device) -> None:
    [group], _ = split(dev.resources.sm, [40])
    with green(dev, group) as context, context.current():
        with pytest.warns(ResourceOverlapWarning):
            parts = dev.partition(a=8, b=None)
        assert counts(parts) == [8, dev.sm_count - 8]
        assert granted(dev).by == "device"
        parts.close()
    with green(dev, group) as context, context.partition(a=8, b=None) as parts:
        assert counts(parts) == [8, 32]


def test_a_pool_decides_when_it_is_made(dev: Device) -> None:
    with foreign_part(dev), PartitionPool(dev) as inside:
        assert counts(inside.switch(a=8, b=None)) == [8, 32]
        Raw().push(dev.context.handle)
        assert counts(inside.switch(a=16, b=None)) == [16, 24]
        Raw().pop()
    with PartitionPool(dev) as outside, foreign_part(dev):
        assert counts(outside.switch(a=8, b=None)) == [8, dev.sm_count - 8]


@pytest.mark.sim_only
def test_a_part_of_one_device_is_none_of_another_device(sim: Callable[..., Any]) -> None:
    sim("h200", driver="13.0", devices=2)
    with foreign_part(Device(0)), Device(1).partition(a=8, b=None) as parts:
        assert counts(parts) == [8, 124]


# A driver whose primary context is a green one, as some containers and preloaded libraries arrange it.
LIMITED = """
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
static void* library(void) { return dlopen(getenv("REAL_DRIVER"), RTLD_NOW); }
#define REAL(name) ((__typeof__(&name))dlsym(library(), #name))
static CUcontext part;
static CUresult retain(CUcontext* context, CUdevice device) {
  CUdevResource whole, group;
  CUdevResourceDesc description;
  CUgreenCtx green;
  unsigned count = 1;
  if (!part) {
    REAL(cuDeviceGetDevResource)(device, &whole, CU_DEV_RESOURCE_TYPE_SM);
    REAL(cuDevSmResourceSplitByCount)(&group, &count, &whole, NULL, 0, 40);
    REAL(cuDevResourceGenerateDesc)(&description, &group, 1);
    REAL(cuGreenCtxCreate)(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM);
    REAL(cuCtxFromGreenCtx)(&part, green);
  }
  *context = part;
  return CUDA_SUCCESS;
}
static CUresult release(CUdevice device) { return (void)device, CUDA_SUCCESS; }
#undef cuDriverGetVersion
CUresult cuDriverGetVersion(int* version) { return REAL(cuDriverGetVersion)(version); }
#undef cuGetProcAddress
CUresult cuGetProcAddress_v2(const char* symbol, void** address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  CUresult result = REAL(cuGetProcAddress_v2)(symbol, address, version, flags, status);
  if (!strcmp(symbol, "cuDevicePrimaryCtxRetain")) *address = (void*)retain;
  if (!strcmp(symbol, "cuDevicePrimaryCtxRelease")) *address = (void*)release;
  return result;
}
"""
PROGRAM = """
from cuda_gctx import Device, PartitionPool
from cuda_gctx.interop.mps import granted
dev = Device()
with dev.partition(a=8, b=None) as parts:
    print([part.sm_count for part in parts], end=" ")
with PartitionPool(dev) as pool:
    print([part.sm_count for part in pool.switch(a=16, b=None)], end=" ")
print(dev.context.sm_count, dev.resources.sm.sm_count, granted(dev).by, granted(dev).sm_count)
"""


@pytest.mark.sim_only
@needs_cuda_header
def test_a_primary_context_that_is_a_part_is_what_partitions_divide(tmp_path: Path) -> None:
    from ..common import CUDA_INCLUDE

    compiler = shutil.which("cc")
    assert compiler is not None, "no C compiler"
    source, library = tmp_path / "limited.c", tmp_path / "liblimited.so"
    source.write_text(LIMITED)
    command = [compiler, "-shared", "-fPIC", "-o", library, source, "-I", str(CUDA_INCLUDE), "-ldl"]
    subprocess.run(command, check=True)
    done = run_python(
        PROGRAM,
        CUDA_GCTX_DRIVER=str(library),
        REAL_DRIVER=str(cuda_software_driver.library_path()),
        CUDA_SOFTWARE_DRIVER_MACHINE="h200@13.0",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[8, 32] [16, 24] 40 132 primary context 40"
