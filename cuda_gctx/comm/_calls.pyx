"""What a call does that was made before, compiled: it looks up what is known of it, and launches."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy

from cuda_gctx._core.extension cimport Counter, LaunchSequence, Stream

from cuda_gctx.comm._protocol import ALIGNMENT
from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp


# Of DLPack 1, what describes a tensor. A torch that has this table fills it in at once; attributes take a call each.
cdef extern from *:
    """
    struct DLDevice { int32_t type, id; };
    struct DLDataType { uint8_t code, bits; uint16_t lanes; };
    struct DLTensor {
      void* data; DLDevice device; int32_t ndim; DLDataType dtype; int64_t *shape, *strides; uint64_t byte_offset;
    };
    using Describe = int (*)(void* object, DLTensor* out);
    struct DLPackExchangeAPI {
      uint32_t major, minor;
      void *before, *allocate, *from_object, *to_object;
      Describe describe;
    };
    """
    ctypedef struct DLDevice:
        int32_t type
        int32_t id
    ctypedef struct DLDataType:
        uint8_t code
        uint8_t bits
        uint16_t lanes
    ctypedef struct DLTensor:
        void* data
        DLDevice device
        int32_t ndim
        DLDataType dtype
        int64_t* shape
        int64_t* strides
        uint64_t byte_offset
    ctypedef int (*Describe)(void*, DLTensor*) except -1
    ctypedef struct DLPackExchangeAPI:
        uint32_t major
        Describe describe

# Of calls: what is kept of one is small, but shapes and addresses may change from call to call.
MOST_KEPT = 4096
# Of dimensions: tensors with more are looked at each time.
cdef enum:
    MOST_DIMENSIONS = 8
cdef uint64_t alignment = ALIGNMENT
cdef object an_op = MixedCommOp, a_mode = MixedCommMode


cdef struct View:
    # What a call needs to know of a tensor. is_right: its type, its device, and that it is contiguous.
    uint64_t address
    int64_t dimensions
    int64_t shape[MOST_DIMENSIONS]
    bint is_right


cdef bint have_same_shape(const View& one, const View& other) noexcept:
    cdef size_t size = one.dimensions * sizeof(int64_t)
    return one.dimensions == other.dimensions and memcmp(one.shape, other.shape, size) == 0


cdef bytes key_of(op, mode, const View& x_in, uint64_t in_address, uint64_t out_address):
    """Of a call: its operation, its mode, the shape of its input, and addresses, which may be 0."""
    cdef int64_t words[4 + MOST_DIMENSIONS]
    words[0], words[1] = op, -1 if mode is None else mode
    words[2], words[3] = <int64_t>in_address, <int64_t>out_address
    memcpy(&words[4], x_in.shape, x_in.dimensions * sizeof(int64_t))
    return PyBytes_FromStringAndSize(<char*>words, (4 + x_in.dimensions) * sizeof(int64_t))


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

    def forget(self):
        """Lets go of the stream of the last call. The next call does not wait for it."""
        with self.lock:
            self.previous = self._handle = None

    cpdef Stream stream(self):
        """The stream of a call, ordered behind the call before if that was on another one."""
        handle = self._raw(self._index) or self._legacy
        if handle != self._handle:
            self.previous, self._handle = self.next(handle), handle
        return self.previous


cdef class Steps:
    """What a call launches: sequences, and between them functions of libraries, which enqueue work themselves.

    numbers: counts calls. All kernels of a call have its number.
    """

    cdef Counter _numbers
    cdef list _steps

    def __init__(self, Counter numbers not None):
        self._numbers, self._steps = numbers, []

    def add(self, step):
        """Add a sequence, or a function."""
        self._steps.append(step)

    cpdef launch(self, Stream stream, given):
        cdef uint64_t number = self._numbers.take(1)
        for step in self._steps:
            if isinstance(step, LaunchSequence):
                (<LaunchSequence>step).launch(stream, given, number)
            else:
                step()


cdef class Known:
    """A call but for its addresses.

    given: what its launches are given; None: the addresses of its tensors, which follow the rules of the modes.
    """

    cdef Steps steps
    cdef tuple given, out_shape
    cdef View out
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
    # Of the tensors of the calls that are kept: their class, and how they are described, if they can be.
    cdef object _class
    cdef Describe _describe
    cdef DLDevice _dl_device
    cdef DLDataType _dl_type

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
        cdef View x_in
        sizes = message.sizes
        known.steps, known.out_shape, known.given = steps, sizes.out_shape, given if self._by_address else None
        known.in_bytes, known.out_bytes = sizes.in_bytes, sizes.out_bytes
        known.may_be_in_place = sizes.op == MixedCommOp.ALLREDUCE
        if self._class is None:
            self._learn(message.x_in)
        if type(op) is not an_op or not (self._view(message.x_in, &x_in) and self._view(message.x_out, &known.out)):
            return
        if not (has_output if self._by_address else known.fits(x_in.address, known.out.address)):
            return
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        self._known[self._key(op, mode, x_in, known.out.address)] = known

    cdef bytes _key(self, op, mode, const View& x_in, uint64_t out_address):
        if self._by_address:
            return key_of(op, mode, x_in, x_in.address, out_address)
        return key_of(op, mode, x_in, 0, 0)

    cdef int _learn(self, tensor) except -1:
        """How the tensors of a class are described: by the first one, which has been checked, so that it has memory."""
        cdef DLPackExchangeAPI* api
        cdef DLTensor found
        self._class = type(tensor)
        capsule = getattr(self._class, "__dlpack_c_exchange_api__", None)
        if capsule is None:
            return 0
        api = <DLPackExchangeAPI*>PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
        if api.major == 1:
            api.describe(<void*>tensor, &found)
            self._dl_device, self._dl_type, self._describe = found.device, found.dtype, api.describe
        return 0

    cdef bint _view(self, tensor, View* view) except -1:
        """Whether a tensor is one of those that are described here; if so, its description."""
        cdef DLTensor found
        cdef int64_t stride = 1
        cdef Py_ssize_t at
        if type(tensor) is not self._class or tensor.requires_grad:
            return False
        if self._describe is NULL:
            shape = tensor.shape
            view.dimensions = len(shape)
            if view.dimensions > MOST_DIMENSIONS:
                return False
            for at in range(view.dimensions):
                view.shape[at] = shape[at]
            view.address = tensor.data_ptr()
            view.is_right = (
                tensor.dtype is self._dtype and tensor.device == self._device and tensor.is_contiguous()
            )
            return True
        try:
            self._describe(<void*>tensor, &found)
        except Exception:
            # One that has no memory here: on the device "meta", or sparse.
            return False
        if found.ndim > MOST_DIMENSIONS:
            return False
        view.address, view.dimensions = <uint64_t>found.data + found.byte_offset, found.ndim
        memcpy(view.shape, found.shape, found.ndim * sizeof(int64_t))
        view.is_right = (
            memcmp(&found.dtype, &self._dl_type, sizeof(DLDataType)) == 0
            and memcmp(&found.device, &self._dl_device, sizeof(DLDevice)) == 0
        )
        # Where a dimension is 1, its stride says nothing.
        for at in range(found.ndim - 1, -1, -1):
            if found.shape[at] != 1:
                view.is_right = view.is_right and found.strides[at] == stride
                stride *= found.shape[at]
        return True

    def run(self, op, x_in, x_out, mode, bint is_checked):
        """Launches a call that is known, and returns its output; None if it is not, or something is wrong with it."""
        cdef Known known
        cdef View view, out
        cdef tuple given
        if not self._known or type(op) is not an_op or not (mode is None or type(mode) is a_mode):
            return None
        if not self._view(x_in, &view) or not (is_checked or view.is_right):
            return None
        if x_out is None:
            if self._by_address:
                return None
            out.address = 0
        elif not self._view(x_out, &out) or not (is_checked or out.is_right):
            return None
        known = self._known.get(self._key(op, mode, view, out.address))
        # Asked with nothing in between: while there are known calls, the word is there.
        if known is None or self._fault[0]:
            return None
        if x_out is None:
            x_out = x_in.new_empty(known.out_shape)
            if not self._view(x_out, &out):
                return None
        elif not is_checked and not have_same_shape(out, known.out):
            return None
        given = known.given
        if given is None:
            if not known.fits(view.address, out.address):
                return None
            given = (view.address, out.address)
        with self._turns.lock:
            known.steps.launch(self._turns.stream(), given)
        return x_out
