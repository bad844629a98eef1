"""Threads of one program in a part: default streams, blocking streams, streams of threads, and resets."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_software_driver import library_folder

from ..common import needs_cuda_header
from .common import answers, compiled, part_environment, run_in_part

pytestmark = pytest.mark.sim_only

CODE = """
import random, threading
use()
library = ask(cu.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
kernel = cu.CUfunction(int(ask(cu.cuLibraryGetKernel(library, b"k"))))
errors = []
def work(seed):
    choose = random.Random(seed)
    use()
    streams = []
    memory = ask(cu.cuMemAlloc(4096))
    for _ in range(100):
        stream = choose.choice([cu.CUstream(0), cu.CUstream(1), cu.CUstream(2), *streams])
        step = choose.randrange(8)
        if step == 0 and len(streams) < 6:
            streams.append(ask(cu.cuStreamCreate(choose.randrange(2))))
        elif step == 1 and streams:
            ask(cu.cuStreamDestroy(streams.pop()))
        elif step == 2:
            ask(cu.cuMemcpyDtoH(bytearray(64), memory, 64))
        elif step == 3:
            ask(cu.cuStreamSynchronize(stream))
        elif step == 4:
            ask(cu.cuMemsetD8Async(memory, 1, 4096, stream))
        elif step == 5:
            assert sms_of(ask(cu.cuStreamGetCtx(stream))) == 16
        else:
            ask(cu.cuLaunchKernel(kernel, 4, 1, 1, 32, 1, 1, 0, stream, 0, 0))
    for stream in streams:
        ask(cu.cuStreamDestroy(stream))
def guarded(seed):
    try:
        work(seed)
    except BaseException as error:
        errors.append(repr(error))
for turn in range(2):
    threads = [threading.Thread(target=guarded, args=(8 * turn + number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    use()
    ask(cu.cuDevicePrimaryCtxReset(0))
    use()
print(errors)
"""


@pytest.mark.parametrize("verify", ["0", "1"])
def test_threads_with_all_kinds_of_streams_make_no_error(verify: str) -> None:
    assert answers(CODE, CUDA_GCTX_VERIFY=verify) == "[]"


# Forks while two threads use streams that the library orders. Prints the children that end by themselves.
FORKS = r"""
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static CUcontext context;
static CUstream stream;
static CUdeviceptr memory;
static int ends;
static void *work(void *unused) {
  cuCtxSetCurrent(context);
  while (!__atomic_load_n(&ends, __ATOMIC_RELAXED)) {
    cuStreamQuery(CU_STREAM_PER_THREAD);
    cuMemsetD8Async(memory, 1, 64, stream);
    cuMemsetD8Async(memory, 1, 64, 0);
  }
  return unused;
}
int main(void) {
  pthread_t threads[2];
  int ended = 0;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cuMemAlloc(&memory, 64) ||
      cuStreamCreate(&stream, 0) || cuMemsetD8Async(memory, 1, 64, CU_STREAM_PER_THREAD)) {
    return 1;
  }
  for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, work, NULL);
  for (int i = 0; i < 60; ++i) {
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      exit(0);
    }
    waitpid(child, &status, 0);
    ended += WIFEXITED(status);
  }
  __atomic_store_n(&ends, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  printf("%d\n", ended);
  return 0;
}
"""


@needs_cuda_header
def test_forked_children_end_while_other_threads_work(tmp_path: Path) -> None:
    folder = library_folder()
    program = compiled(tmp_path / "forks", FORKS, "-L", folder, "-lcuda", "-pthread", f"-Wl,-rpath,{folder}")
    assert run_in_part([program], part_environment()).stdout == "60\n"
