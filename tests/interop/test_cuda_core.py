"""cuda.core in partitions, in a child in which both it and this package run on one driver."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import cuda_software_driver as sim
from cuda_gctx import Device
from cuda_gctx.interop.cuda_core import core_stream

from ..common import run_python, run_with_cuda_core
from ..conftest import is_simulated
from ..raw import PROBE, RECORD_BYTES

PROGRAM = """
import gc
import ctypes, json
import cuda.core
from cuda.bindings import driver
from cuda_gctx import Device, Stream, system
from cuda_gctx.interop.cuda_core import core_stream


def current():
    code, context = driver.cuCtxGetCurrent()
    assert int(code) == 0
    return int(context)


def main():
    dev = Device(0)
    dev.context
    assert current() == 0
    with dev.partition(16, 32) as parts:
        theirs = [core_stream(part) for part in parts]
        assert current() == 0
        for part, stream in zip(parts, theirs):
            assert isinstance(stream, cuda.core.Stream)
            assert int(stream.handle) == part.stream.handle
            assert stream.resources.sm.sm_count == part.sm_count
            assert Stream(stream).context.is_green
            # Back again: the same stream, of the same context.
            assert Stream(stream) == part.stream
            assert Stream(stream).context == part.context
        with parts[0].context.current() as context:
            assert int(core_stream(parts[1]).handle) == parts[1].stream.handle
            assert current() == context.handle
    # The streams of cuda.core outlive the partitions.
    with dev.context.current():
        theirs[0].record().sync()
        buffer = cuda.core.Device(0).allocate(64, stream=theirs[0])
        buffer.close(stream=theirs[0])
    assert Stream(theirs[0]).resources.sm.sm_count == 16
    # Streams of cuda.core are adopted with their context, and destroyed by cuda.core.
    core = cuda.core.Device(0)
    core.set_current()
    made = core.create_stream()
    adopted = Stream(made)
    assert not adopted.is_owned and not adopted.context.is_green
    adopted.sync()
    adopted.close()
    made.close()
    for stream in theirs:
        stream.close()


main()
gc.collect()
system.release_contexts()
library = ctypes.CDLL(system.driver_path)
library.softwareDriverLedger.restype = ctypes.c_char_p
ledger = json.loads(library.softwareDriverLedger())
assert ledger["misuse"] == [], ledger
live = [found["kind"] for found in ledger["live"]]
# What cuda.core has seen stays: the two partitions and their streams, not the background partition.
assert (live.count("green context"), live.count("stream")) == (2, 2), ledger
print("as it should be")
"""


def test_bindings_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, dev: Device) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(ImportError, match=r"this needs cuda-bindings 12\.0 or newer, which cannot be imported"):
        core_stream(dev.context)


# On 12.5 to 12.9, cuda.core calls a form of cuStreamGetCtx that refuses streams of green contexts.
@pytest.mark.sim_only
@pytest.mark.parametrize("version", ["12.4", "13.0", "13.1"])
def test_streams_pass_in_both_directions_and_live_as_long_as_they_are_used(version: str) -> None:
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": sim.library_folder(),
            "CUDA_GCTX_DRIVER": sim.library_path(),
            "CUDA_SOFTWARE_DRIVER_MACHINE": f"h200@{version}",
            "CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout == "as it should be\n"


# One launch as a builder of cuda.core captures it, and as a node of a definition.
MOVED = """
import sys
import cuda.core
import numpy as np
from cuda.core import LaunchConfig, ObjectCode, launch
from cuda.core.graph import GraphDefinition
from cuda_gctx import Device, Graph
from cuda_gctx.interop.cuda_core import core_stream


def main(image, record_bytes):
    dev, core = Device(0), cuda.core.Device(0)
    core.set_current()
    kernel = ObjectCode.from_ptx(image.encode()).get_kernel("cuda_gctx_probe")
    blocks = 2 * dev.sm_count
    config = LaunchConfig(grid=blocks, block=1024)
    with dev.partition(16) as parts:
        memory = core.allocate(blocks * record_bytes, stream=core_stream(parts[0]))
        arguments = memory, np.uint32(blocks), np.uint64(1000)
        expected = parts[0].context.verify().contexts[0].sm_ids
        builder = core.create_graph_builder().begin_building()
        launch(builder, config, kernel, *arguments)
        builder.end_building()
        definition = GraphDefinition()
        definition.launch(config, kernel, *arguments)
        for theirs in (builder, builder.graph_definition, definition):
            with Graph(theirs) as graph, graph.in_partition(parts[0]) as moved:
                moved.launch(parts[0].stream)
                parts.sync()
                [proof] = moved.verify().kernels
                assert (proof.name, proof.sm_ids) == ("cuda_gctx_probe", expected), proof
        try:
            Graph(builder.complete())
        except TypeError as error:
            assert "provides no graph of an executable one" in str(error)
        else:
            raise AssertionError("an executable graph was taken")
        memory.close(stream=core_stream(parts[0]))


main(sys.argv[1], int(sys.argv[2]))
print("moved")
"""


@pytest.mark.any_driver
def test_graphs_of_cuda_core_are_moved() -> None:
    pytest.importorskip("cuda.core", reason="cuda.core is not installed here")
    run = run_with_cuda_core if is_simulated() else run_python
    done = run(MOVED, PROBE.rstrip(b"\0").decode(), str(RECORD_BYTES))
    assert (done.returncode, done.stdout) == (0, "moved\n"), done.stderr
