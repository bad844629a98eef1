"""What a call does that was made before, compiled: it looks up what is known of it, and launches."""

cimport cython
from libc.stdint cimport uint64_t, uintptr_t

from cuda_gctx._core.sequence cimport Counter, Sequence
from cuda_gctx._core.stream cimport Stream

from cuda_gctx.comm._protocol import ALIGNMENT
from cuda_gctx.comm._topology import MixedCommOp

# Of calls: what is kept of one is small, but shapes and addresses may change from call to call.
MOST_KEPT = 4096
cdef uint64_t alignment = ALIGNMENT


cdef class Turns:
    """The stream of the call now, which is that of the call before in most of them.

    raw: returns the handle of the current stream of a device by its index; 0 for the default stream, whose handle
    is `legacy`. A call is inside of it while it fills and launches its kernels: of one thread at a time.
    """

    cdef object _raw, _index, _legacy, _handle
    cdef readonly object previous
    cdef cython.pymutex lock

    def __init__(self, raw, index, uintptr_t legacy):
        self._raw, self._index, self._legacy = raw, index, legacy

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *error):
        self.lock.release()

    def handle(self):
        """Of the current stream."""
        return self._raw(self._index) or self._legacy

    def next(self, handle):
        """The stream of a handle, ordered behind the previous one."""
        raise NotImplementedError

    cpdef Stream stream(self):
        """The stream of a call, ordered behind the call before if that was on another one."""
        handle = self._raw(self._index) or self._legacy
        if handle != self._handle:
            self.previous, self._handle = self.next(handle), handle
        return self.previous


cdef class Steps:
    """What a call launches: sequences, and between them functions of libraries, which enqueue work themselves.

    numbers: what counts the kernels of all calls.
    """

    cdef Counter _numbers
    cdef list _steps

    def __init__(self, Counter numbers not None):
        self._numbers, self._steps = numbers, []

    def add(self, step, kernels=None):
        """A sequence and how many kernels it launches, or a function."""
        self._steps.append((step, kernels))

    cpdef launch(self, Stream stream, given):
        for step, kernels in self._steps:
            if kernels is None:
                step()
            else:
                (<Sequence>step).launch(stream, given, self._numbers.take(kernels))


cdef class Known:
    """A call but for its addresses.

    given: what its launches are given; None: the addresses of its tensors, which follow the rules of the modes.
    """

    cdef object steps, out_shape
    cdef tuple given
    cdef uint64_t in_bytes, out_bytes
    cdef bint may_be_in_place

    cdef bint fits(self, uint64_t x_in, uint64_t x_out):
        """Whether the tensors are aligned and do not share memory, unless they may be the same one."""
        if (x_in | x_out) % alignment:
            return False
        if x_in < x_out + self.out_bytes and x_out < x_in + self.in_bytes:
            return self.may_be_in_place and x_in == x_out
        return True


cdef class Calls:
    """The calls of a handler that were made before: by operation, mode and shape.

    dtype, device: those of its tensors. turns: of its streams; None where nothing is kept. fault: the address of a word
    of the host that is not 0 after a fault.
    """

    cdef object _dtype, _device
    cdef Turns _turns
    cdef const uint64_t* _fault
    cdef dict _known
    cdef bint _by_address

    def __init__(self, dtype, device, Turns turns=None, uintptr_t fault=0):
        self._dtype, self._device, self._turns = dtype, device, turns
        self._fault = <const uint64_t*>fault
        self._known = {}

    def forget(self, *, bint by_address):
        """Every call is looked at again: the handler, what it chooses or what is mapped has changed.

        by_address: whether the addresses of tensors decide what a call is, because some of them are mapped.
        """
        self._known = {}
        self._by_address = by_address

    def keep(self, op, mode, message, steps, given, *, bint has_output):
        """Keeps a call that has been launched: a Message, its Steps, and what they were given.

        has_output: whether it was called with an output.
        """
        cdef Known known = Known()
        sizes = message.sizes
        known.steps, known.out_shape, known.given = steps, sizes.out_shape, given if self._by_address else None
        known.in_bytes, known.out_bytes = sizes.in_bytes, sizes.out_bytes
        known.may_be_in_place = sizes.op == MixedCommOp.ALLREDUCE
        cdef tuple key = (op, mode, message.x_in.shape)
        if self._by_address:
            key += (message.in_address, message.out_address)
        if not (has_output if self._by_address else known.fits(message.in_address, message.out_address)):
            return
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        self._known[key] = known

    cdef bint is_right(self, tensor):
        return tensor.dtype is self._dtype and tensor.device == self._device and tensor.is_contiguous()

    def run(self, op, x_in, x_out, mode, bint is_checked):
        """Launches a call that is known, and returns its output; None if it is not, or something is wrong with it."""
        cdef Known known
        cdef tuple given
        if self._by_address:
            if x_out is None:
                return None
            known = self._known.get((op, mode, x_in.shape, x_in.data_ptr(), x_out.data_ptr()))
        else:
            known = self._known.get((op, mode, x_in.shape))
        # Asked with nothing in between: while there are known calls, the word is there.
        if known is None or self._fault[0]:
            return None
        if not (is_checked or self.is_right(x_in)):
            return None
        if x_out is None:
            x_out = x_in.new_empty(known.out_shape)
        elif not is_checked and not (self.is_right(x_out) and x_out.shape == known.out_shape):
            return None
        given = known.given
        if given is None:
            given = (x_in.data_ptr(), x_out.data_ptr())
            if not known.fits(given[0], given[1]):
                return None
        with self._turns.lock:
            known.steps.launch(self._turns.stream(), given)
        return x_out
