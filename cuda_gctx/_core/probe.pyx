"""Where and when the blocks of a kernel run, and how much of a kernel fits into a context."""


# The kernel counts its rounds as well, and stops by that count some time after this.
cdef uint64_t LONGEST_SPIN_NS = 1_000_000_000
cdef uint64_t MOST = 2**31 - 1  # blocks, and stamps


def run_probe(streams, blocks, uint64_t spin_ns, uint64_t timeout_ns, unsigned int cluster=1):
    """Run the probe on all streams at once. Returns for each the blocks that ran, as (SM id, start, end), times in ns.

    cluster: the number of consecutive blocks in a thread-block cluster.
    """
    cdef vector[cpp.StreamHandle] handles
    cdef vector[unsigned int] counts
    cdef vector[vector[cpp.ProbeBlock]] seen
    cdef Stream stream
    for stream in streams:
        cpp.present(stream._slot)
        handles.push_back(stream._slot.get())
    for count in blocks:
        counts.push_back(count)
    seen = cpp.run_probe(handles, counts, spin_ns, timeout_ns, cluster)
    # A block that did not run wrote nothing, and a block that ran has an end. The parts are taken by number, because a
    # variable would be a copy, which can raise where nothing catches it.
    return [
        [(block.sm, block.start_ns, block.end_ns) for block in seen[part] if block.end_ns != 0]
        for part in range(seen.size())
    ]


def spin(stream, blocks, spin_ns):
    """Keep SMs busy: launch `blocks` blocks on a stream, two of which fill an SM, each for `spin_ns`. Does not wait.

    stream: a Stream. ValueError for a number or a time out of range.
    """
    cdef unsigned int count = as_int("blocks", blocks, 1, MOST)
    cdef uint64_t duration = as_int("spin_ns", spin_ns, 0, LONGEST_SPIN_NS)
    if not isinstance(stream, Stream):
        raise TypeError(
            f"stream must be a Stream, such as the stream of a partition (part.stream), not {type(stream).__name__}"
        )
    cpp.spin((<Stream>stream)._slot, count, duration)


cdef class Stamps:
    """Slots on a device for timestamps that streams write in their order: when and on which SM work started.

    A stamp is a kernel of one warp. It runs when its stream gets to it and an SM of the stream's context has room.
    """

    cdef cpp.Slot[cpp.Stamps] _slot
    cdef readonly int capacity

    def __init__(self, device, capacity):
        """device: a Device; capacity: the number of slots."""
        cdef Stream own
        if not isinstance(device, Device):
            raise TypeError(f"device must be a Device, not {type(device).__name__}")
        places = as_int("capacity", capacity, 1, MOST)
        own = device.create_stream()
        cpp.make_stamps(self._slot, own._slot, <size_t>places)
        self.capacity = places

    def write(self, Stream stream not None, place):
        """Enqueue the stamp of a place on a stream. Does not wait. IndexError if there is no such place."""
        number = as_int("place", place)
        if not 0 <= number < self.capacity:
            raise IndexError(f"place must be an int from 0 to {self.capacity - 1}, not {number}")
        cpp.write_stamp(self._slot, stream._slot, number)

    def read(self):
        """For each slot, the SM id and the nanoseconds of the device's timer; None if no stamp has been written.

        Synchronise the streams first.
        """
        cdef vector[cpp.ProbeBlock] seen = cpp.read_stamps(self._slot)
        # A block that ran has an end.
        return [(stamp.sm, stamp.start_ns) if stamp.end_ns != 0 else None for stamp in seen]


def probe_blocks_per_sm(Context context not None):
    """The number of blocks of the probe that fill an SM."""
    return blocks_per_sm(context, 0, cpp.probe_threads, 0)


def blocks_per_sm(Context context not None, uintptr_t function, unsigned int threads, unsigned int shared_bytes):
    """The number of blocks of a kernel (0: of the probe) that fit on an SM of the context at once."""
    return cpp.blocks_per_sm(context._slot, cpp.LaunchShape(<cpp.CUfunction>function, threads, shared_bytes))


def max_cluster_size(Stream stream not None, uintptr_t function, unsigned int threads, unsigned int shared_bytes):
    """The largest thread-block cluster of a kernel (0: of the probe) on a stream."""
    return cpp.max_cluster_size(stream._slot, cpp.LaunchShape(<cpp.CUfunction>function, threads, shared_bytes))


def max_clusters(
    Stream stream not None,
    uintptr_t function,
    unsigned int threads,
    unsigned int shared_bytes,
    unsigned int cluster_size,
):
    """The number of clusters of a kernel (0: of the probe) that a stream can run at once."""
    return cpp.max_active_clusters(
        stream._slot, cpp.LaunchShape(<cpp.CUfunction>function, threads, shared_bytes), cluster_size
    )
