"""Plans of calls, compiled: looks up the plan of a call that was made before, and launches it."""

from importlib import import_module

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy

from cuda_gctx._core.extension cimport Counter, LaunchSequence, Stream

from cuda_gctx.comm._gradients import demand_no_gradient
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

# The number of plans that are kept: each is small, but shapes and addresses may change from call to call.
MOST_KEPT = 4096
# torch's tensors have no more.
cdef enum:
    MOST_DIMENSIONS = 64
# Replaced by tests that look at launches.
Launches = LaunchSequence
# Streams of a plan by number: the stream of the call, and the streams of the copies before and after its kernels.
MAIN, BEFORE, AFTER = range(3)
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


cdef bytes key_of(op, mode, root, const View& x_in, uint64_t in_address, uint64_t out_address, int64_t distance):
    """Key of a call: operation, mode, root, the shape of its input, addresses that matter, and how tensors overlap."""
    cdef int64_t words[6 + MOST_DIMENSIONS]
    words[0], words[1], words[2] = op, -1 if mode is None else mode, -1 if root is None else root
    words[3], words[4], words[5] = <int64_t>in_address, <int64_t>out_address, distance
    memcpy(&words[6], x_in.shape, x_in.dimensions * sizeof(int64_t))
    return PyBytes_FromStringAndSize(<char*>words, (6 + x_in.dimensions) * sizeof(int64_t))


cdef uint64_t bytes_of(const View& view, uint64_t element_bytes) noexcept:
    cdef int64_t at
    for at in range(view.dimensions):
        element_bytes *= <uint64_t>view.shape[at]
    return element_bytes


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


cdef tuple place_of(address):
    return (None, address) if isinstance(address, int) else (address.given, address.offset)


cdef class Plan:
    """The steps of a call, prepared once for its sizes, and launched for each call with the addresses of its tensors.

    Steps are kernels, copies, and functions of libraries, which enqueue work on the current stream themselves, and
    depend on no address. reads, writes: the parts of the tensors of this rank that the call reads and writes. numbers:
    counts calls, so that all kernels of a call have one number. number: the number without its count. copying: the
    streams BEFORE and AFTER. is_held: the first kernel has taken the control words for the kernels that follow.
    """

    cdef Counter _numbers
    cdef object _copying, _last
    cdef list _steps
    cdef readonly uint32_t number
    cdef readonly tuple reads, writes
    cdef public bint is_held

    def __init__(self, Counter numbers not None, number, reads=(), writes=(), copying=()):
        self._numbers, self.number, self._copying, self._steps = numbers, number, copying, []
        self.reads, self.writes = tuple(reads), tuple(writes)

    cdef _sequence(self):
        if self._last is None:
            self._last = Launches(self._copying)
            self._steps.append(self._last)
        return self._last

    def kernel(self, function, packed, number_at, blocks, threads, shared_bytes=0, is_programmatic=False):
        """Add a kernel, which takes a struct. number_at: the offset of the number in it."""
        content, addresses = packed
        places = {at: place_of(address) for at, address in addresses.items()}
        self._sequence().kernel(function, blocks, threads, shared_bytes, content, places, number_at, is_programmatic)

    def copy(self, copy, stream=MAIN):
        """Add a copy on a stream."""
        to, source, size = copy
        self._sequence().copy(stream, place_of(to), place_of(source), size)

    def wait(self, stream, other):
        """Make what follows on a stream wait for what is on another one."""
        self._sequence().wait(stream, other)

    def call(self, function):
        """Add a function of a library."""
        self._steps.append(function)
        self._last = None

    cpdef launch(self, Stream stream, given):
        """Launch the steps. given: the addresses of this call."""
        cdef uint64_t number = self._numbers.take(1)
        for step in self._steps:
            if isinstance(step, LaunchSequence):
                (<LaunchSequence>step).launch(stream, given, number)
            else:
                step()


cdef class Known:
    """A call that was made before, but for its addresses.

    given: the addresses for its plan; None: the addresses of its tensors. again: calls a library that has no plan.
    """

    cdef Plan plan
    cdef object again
    cdef tuple given, out_shape
    cdef View out


cdef class Plans:
    """The plans of a handler: by operation, mode, root and shape.

    dtype, device: those of its tensors. turns: of its streams; None where nothing is kept. fault: the address of a word
    of the host that is not 0 after a fault.
    """

    cdef object _dtype, _device
    cdef Turns _turns
    cdef const uint64_t* _fault
    cdef dict _known
    cdef list _keys
    cdef uint64_t _random, _element_bytes
    cdef bint _by_address
    # The classes of the tensors of calls that are kept, and how they are described, if they can be.
    cdef set _classes
    cdef Describe _describe
    cdef object _empty_like
    cdef DLDevice _dl_device
    cdef DLDataType _dl_type

    def __init__(self, dtype, device, Turns turns=None, uintptr_t fault=0):
        self._dtype, self._device, self._turns = dtype, device, turns
        self._fault = <const uint64_t*>fault
        self._classes = set()
        self.forget(by_address=False)

    def forget(self, *, bint by_address):
        """Every call is looked at again: the handler, what it chooses or what is mapped has changed.

        by_address: whether the addresses of tensors decide what a call is, because some of them are mapped.
        """
        self._known, self._keys, self._by_address = {}, [], by_address

    def keep(self, op, mode, message, *, bint has_output, launched=None, again=None):
        """Keeps a call that has been made.

        message: its Message. has_output: it was called with an output. launched: its Plan, and the addresses for it.
        again: calls a library with an input and an output, if there is no plan.
        """
        cdef Known known = Known()
        cdef View x_in, out
        if self._turns is None or type(op) is not an_op or not (mode is None or type(mode) is a_mode):
            return
        known.again, known.out_shape = again, message.sizes.out_shape
        if launched is not None:
            known.plan, given = launched
            # A new output is not mapped, so that the call has the addresses of its tensors alone.
            if self._by_address and not has_output and len(given) != 2:
                return
            known.given = given if self._by_address and has_output else None
        self._element_bytes = message.x_in.element_size()
        for tensor in (message.x_in, message.x_out):
            if type(tensor) not in self._classes:
                self._learn(tensor)
        if not (self._view(message.x_in, &x_in) and self._view(message.x_out, &known.out)):
            return
        out = known.out
        if not has_output:
            out.address = 0
        key = self._key(op, mode, message.root, x_in, out)
        with self._turns.lock:
            if key not in self._known and len(self._known) >= MOST_KEPT:
                # Any of them: of shapes that come in turn, most are still there.
                self._random = self._random * 1103515245 + 12345
                at = (self._random >> 16) % <uint64_t>len(self._keys)
                del self._known[self._keys[at]]
                self._keys[at] = key
            elif key not in self._known:
                self._keys.append(key)
            self._known[key] = known

    cdef bytes _key(self, op, mode, root, const View& x_in, const View& out):
        cdef uint64_t begin = x_in.address, out_begin = out.address
        cdef int64_t distance = INT64_MIN
        if out_begin and begin < out_begin + bytes_of(out, self._element_bytes):
            if out_begin < begin + bytes_of(x_in, self._element_bytes):
                distance = <int64_t>(out_begin - begin)
        if self._by_address:
            return key_of(op, mode, root, x_in, begin, out_begin, distance)
        return key_of(op, mode, root, x_in, 0, 0, distance)

    cdef int _learn(self, tensor) except -1:
        """Learns how the tensors of a class are described, from a checked one, which has memory."""
        cdef DLPackExchangeAPI* api
        cdef DLTensor found
        cdef Describe describe = NULL
        capsule = getattr(type(tensor), "__dlpack_c_exchange_api__", None)
        if capsule is not None:
            api = <DLPackExchangeAPI*>PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
            if api.major == 1:
                describe = api.describe
        if self._classes and describe is not self._describe:
            return 0
        if describe is not NULL:
            self._empty_like = import_module("torch").empty_like
            describe(<void*>tensor, &found)
            self._dl_device, self._dl_type = found.device, found.dtype
        self._describe = describe
        self._classes.add(type(tensor))
        return 0

    cdef bint _view(self, tensor, View* view) except -1:
        """Whether a tensor is one of those that are described here; if so, its description."""
        cdef DLTensor found
        cdef int64_t stride = 1
        cdef Py_ssize_t at
        if type(tensor) not in self._classes:
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

    def run(self, op, x_in, x_out, mode, root, bint is_checked):
        """Launches a call that is known, and returns its output; None if it is not, or something is wrong with it."""
        cdef Known known
        cdef View view, out
        cdef tuple given
        if not self._known or type(op) is not an_op or not (mode is None or type(mode) is a_mode):
            return None
        if not self._view(x_in, &view) or not (is_checked or view.is_right):
            return None
        if x_in.requires_grad or x_out is not None and x_out.requires_grad:
            demand_no_gradient(x_in, x_out)
        if x_out is None:
            out.address = 0
        elif not self._view(x_out, &out) or not (is_checked or out.is_right):
            return None
        known = self._known.get(self._key(op, mode, root, view, out))
        # Asked with nothing in between: while there are known calls, the word is there.
        if known is None or self._fault[0]:
            return None
        if x_out is None:
            # torch makes a tensor like another one in half the time.
            if self._describe is not NULL and have_same_shape(view, known.out):
                x_out = self._empty_like(x_in)
            else:
                x_out = x_in.new_empty(known.out_shape)
            if known.again is None and not self._view(x_out, &out):
                return None
        elif not is_checked and not have_same_shape(out, known.out):
            return None
        if known.again is not None:
            known.again(x_in, x_out)
            return x_out
        given = known.given
        if given is None:
            if (view.address | out.address) % alignment:
                return None
            given = (view.address, out.address)
        with self._turns.lock:
            known.plan.launch(self._turns.stream(), given)
        return x_out
