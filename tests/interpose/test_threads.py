"""Threads of one program in a part: default streams, blocking streams, streams of threads, and resets."""

from __future__ import annotations

import pytest

from .common import answers

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
