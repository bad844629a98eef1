"""Kernels, copies and orders of streams that are noted once and launched again and again, with other addresses."""


cdef cpp.Place place_of(place) except *:
    cdef cpp.Place found
    given, offset = place
    if given is not None:
        found.given = given
    found.offset = offset
    return found


cdef class Counter:
    """Counts launches."""

    cpdef uint64_t take(self, uint64_t launches):
        """How many launches there were before so many."""
        cdef uint64_t before = self._count
        self._count += launches
        return before


cdef class LaunchSequence:
    """The launches of a call. Streams have numbers: 0 is the one that `launch` is called with.

    A place is the number of a given address and what is added to it; with None as its number, it is an address that
    never changes. Not for several threads at once.
    """

    def __init__(self, streams=()):
        """streams: those with the numbers from 1."""
        cdef Stream stream
        cpp.make_sequence(self._slot)
        for stream in streams:
            cpp.add_stream(self._slot, stream._slot)

    def kernel(self, function, blocks, threads, shared_bytes, arguments, places, number_at, programmatic=False):
        """Note a kernel on the stream 0.

        function: its handle in the context of the stream. arguments: the bytes of the struct that it takes. places: by
        offset in that struct, the words that are addresses. number_at: where it has a word whose lower half tells
        launches apart. programmatic: whether it need not wait for the end of the kernel before it.
        """
        cdef cpp.KernelShape shape
        cdef vector[uint8_t] content
        cdef vector[cpp.Patch] patches
        cdef cpp.Patch patch
        for byte in arguments:
            content.push_back(byte)
        shape.function = <cpp.CUfunction><uintptr_t>function
        shape.blocks, shape.threads, shape.shared_bytes = blocks, threads, shared_bytes
        shape.is_programmatic, shape.number_at = programmatic, number_at
        for at, place in places.items():
            patch.at, patch.place = at, place_of(place)
            patches.push_back(patch)
        cpp.add_kernel(self._slot, shape, content, patches)

    def copy(self, stream, to, source, size):
        """Note a copy on a stream: two places, and the number of bytes."""
        cdef uint64_t count = size
        cpp.add_copy(self._slot, stream, place_of(to), place_of(source), count)

    def wait(self, stream, other):
        """Note that a stream waits for what is on another one by then."""
        cpp.add_wait(self._slot, stream, other)

    cpdef launch(self, Stream stream, given, uint64_t count):
        """Launch what was noted.

        given: the addresses. count: of calls before; the number of all kernels of this launch follows from it.
        """
        cdef vector[uint64_t] addresses
        cdef uint64_t address
        if stream is None:
            raise TypeError("a sequence is launched on a Stream, not on None")
        for address in given:
            addresses.push_back(address)
        cpp.launch_sequence(self._slot, stream._slot, addresses, count)
