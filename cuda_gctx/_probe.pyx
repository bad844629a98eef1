"""Where and when the blocks of a kernel run, and how much of a kernel fits into a context."""

from libc.stdint cimport uint64_t, uintptr_t
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector

from cuda_gctx._context cimport Context
from cuda_gctx._core cimport StreamHandle
from cuda_gctx._stream cimport Stream


def run_probe(streams, blocks, uint64_t spin_ns, uint64_t timeout_ns):
    """Runs the probe on all streams at once. For each: the blocks that ran, as (SM id, start, end), times in ns."""
    cdef vector[StreamHandle] handles
    cdef vector[unsigned int] counts
    cdef vector[vector[ProbeBlock]] seen
    cdef ProbingRuntime* runtime
    cdef shared_ptr[CProbe] probe
    cdef Stream stream
    cdef int device
    for stream in streams:
        stream.live()
        handles.push_back(stream._box)
    for count in blocks:
        counts.push_back(count)
    stream = streams[0]
    runtime = <ProbingRuntime*>&stream._box.get().context().get().runtime()
    device = stream._box.get().context().get().device()
    with nogil:
        probe = runtime.probe(device)
        seen = probe.get().run(handles, counts, spin_ns, timeout_ns)
    # A block that did not run wrote nothing, and a block that ran has an end.
    return [[(block.sm, block.start_ns, block.end_ns) for block in part if block.end_ns != 0] for part in seen]


cdef LaunchShape launch_shape(uintptr_t function, unsigned int threads, unsigned int shared_bytes):
    cdef LaunchShape shape
    shape.function = <CUfunction>function
    shape.threads = threads
    shape.shared_bytes = shared_bytes
    return shape


def probe_blocks_per_sm(Context context not None):
    """How many blocks of the probe fill an SM."""
    return blocks_per_sm(context, 0, probe_threads, 0)


def blocks_per_sm(Context context not None, uintptr_t function, unsigned int threads, unsigned int shared_bytes):
    """How many blocks of a kernel (0: of the probe) an SM of the context holds at once."""
    cdef LaunchShape shape = launch_shape(function, threads, shared_bytes)
    cdef unsigned int blocks
    context.pin()
    try:
        with nogil:
            blocks = c_blocks_per_sm(context._box, shape)
    finally:
        context.unpin()
    return blocks


def max_cluster_size(Stream stream not None, uintptr_t function, unsigned int threads, unsigned int shared_bytes):
    """The largest thread-block cluster of a kernel (0: of the probe) on a stream."""
    cdef LaunchShape shape = launch_shape(function, threads, shared_bytes)
    cdef unsigned int size
    stream.pin()
    try:
        with nogil:
            size = c_max_cluster_size(stream._box, shape)
    finally:
        stream.unpin()
    return size


def max_clusters(
    Stream stream not None,
    uintptr_t function,
    unsigned int threads,
    unsigned int shared_bytes,
    unsigned int cluster_size,
):
    """How many clusters of a kernel (0: of the probe) a stream can run at once."""
    cdef LaunchShape shape = launch_shape(function, threads, shared_bytes)
    cdef unsigned int clusters
    stream.pin()
    try:
        with nogil:
            clusters = c_max_active_clusters(stream._box, shape, cluster_size)
    finally:
        stream.unpin()
    return clusters
