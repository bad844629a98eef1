"""Blocks that make a context current on a thread, each for one task of it."""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from cuda_gctx._core.arguments cimport make_only_here, refuse_copy
from cuda_gctx._core.cpp cimport (
    Borrowed,
    ContextBox,
    ContextKind,
    Entry,
    Slot,
    demand_there,
    end_thread,
    enter_block,
    leave_at_once,
    leave_block,
    leave_what_was_left,
    live,
    take_left,
    this_thread,
)
from cuda_gctx._core.errors cimport report_failures


cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030D0000 && !defined(PyThreadState_GetUnchecked)
    #define PyThreadState_GetUnchecked _PyThreadState_UncheckedGet
    #endif

    /* Each task of asyncio, trio, anyio and gevent, and each greenlet, has a contextvars.Context of its own. Where a
       thread or a greenlet has none yet, copying it makes one, as the first variable would. */
    static void* gctx_task_here(void) {
      PyThreadState* const state = PyThreadState_GetUnchecked();
      if (state->context == NULL) {
        PyObject* const copy = PyContext_CopyCurrent();
        if (copy == NULL) {
          return NULL;
        }
        Py_DECREF(copy);
      }
      return state->context;
    }

    /* The state whose end is watched, of the thread. */
    static __attribute__((tls_model("initial-exec"))) __thread PyThreadState* gctx_watched = NULL;
    static int gctx_is_watched(void) { return gctx_watched == PyThreadState_GetUnchecked(); }
    static void gctx_watch(int yes) { gctx_watched = yes ? PyThreadState_GetUnchecked() : NULL; }
    """
    bint gctx_is_watched() noexcept
    void gctx_watch(bint) noexcept
    void* task_of_this_thread "gctx_task_here"() except NULL


cdef void* task_here() except NULL:
    """What tells the tasks of a thread apart, borrowed."""
    return task_of_this_thread()


cdef class _ThreadEnd:
    """Removes the current contexts of a thread when Python destroys its state, which is before join() returns."""

    cdef const void* _thread

    def __dealloc__(self):
        # The interpreter destroys the states of other threads when it ends, and in a forked child.
        if self._thread == this_thread():
            gctx_watch(False)
            end_thread()
            release_left()


cdef int watch_thread() except -1:
    """Make sure that the calling thread's current contexts are removed before join() returns.

    The system reports the end of a thread only after join().
    """
    cdef _ThreadEnd end
    if not gctx_is_watched():
        end = _ThreadEnd()
        end._thread = this_thread()
        (<dict>PyThreadState_GetDict())["cuda_gctx"] = end
        gctx_watch(True)
    return 0


cdef void release_left() noexcept:
    """Let go of blocks that have left the list of this thread, and tell what failed with their contexts."""
    cdef CurrentBlock block
    cdef Entry* entry = take_left()
    while entry != NULL:
        block = <CurrentBlock>entry.block()
        block._task = None
        Py_DECREF(block)
        entry = take_left()
    report_failures()


cdef extern from *:
    """
    /* What a cdef class cannot declare: its objects are called without a tuple of the arguments. */
    static void gctx_set_vectorcall(PyObject* type, Py_ssize_t offset) {
      ((PyTypeObject*)type)->tp_vectorcall_offset = offset;
      ((PyTypeObject*)type)->tp_call = PyVectorcall_Call;
      ((PyTypeObject*)type)->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
      PyType_Modified((PyTypeObject*)type);
    }
    """
    void gctx_set_vectorcall(object, Py_ssize_t) noexcept
    Py_ssize_t PyVectorcall_NARGS(size_t) noexcept


cdef class _Callable:
    """A method of objects that can be called: of an instance, it is the instance itself."""

    def __get__(self, instance, kind):
        return self if instance is None else instance

    def __call__(self, instance, *args):
        return instance(*args)


cdef object call_block(PyObject* called, PyObject** arguments, size_t count, PyObject* names):
    """Enters a block if there are no arguments, and leaves it if there are those of ``__exit__``."""
    cdef CurrentBlock block = <CurrentBlock>called
    with cython.critical_section(block):
        if PyVectorcall_NARGS(count) != 0:
            block.leave()
            return None
        block.enter()
        return block._context


@cython.final
@cython.freelist(8)
@cython.no_gc_clear  # the slot is part of the context
cdef class CurrentBlock:
    """A ``with`` block in which a context is current on the calling thread."""

    # A ``with`` statement makes a bound method of each and throws it away (up to Python 3.13): a seventh of the
    # instructions of a block.
    __enter__ = __exit__ = _Callable()

    cdef int enter(self) except -1:
        cdef Borrowed[ContextBox] box = self._slot.borrow()
        cdef void* task = task_of_this_thread()
        # What can raise comes before the push.
        watch_thread()
        if box.get() == NULL or box.get().kind() != ContextKind.green:
            live(self._slot[0])
            demand_there(self._slot[0])
        while not enter_block(self._entry, self._slot.get(), task):
            if not self._entry.is_idle():
                return self.enter_again()
            leave_what_was_left()
            release_left()
        self._task = <object>task
        Py_INCREF(self)  # until it has left the list of its thread
        return 0

    cdef int enter_again(self) except -1:
        cdef CurrentBlock again = new_block(self._slot, self._context)
        call_block(<PyObject*>again, NULL, 0, NULL)
        if self._more is None:
            self._more = []
        self._more.append(again)
        return 0

    cdef int leave(self) except -1:
        cdef void* task = task_of_this_thread()
        if self._more is None and leave_at_once(self._entry, task, self._slot[0]):
            self._task = None
            Py_DECREF(self)
            return 0
        return self.leave_slowly(task)

    cdef int leave_slowly(self, const void* task) except -1:
        """Leave the block that was entered last on this thread, or else the one that was entered last."""
        cdef CurrentBlock block
        cdef CurrentBlock found = None
        for block in [self, *(self._more or ())]:
            if found is None or block._entry.is_of_this_thread() or not found._entry.is_of_this_thread():
                found = block
        if found is not self:
            self._more.remove(found)
            self._more = self._more or None
        try:
            leave_block(found._entry, task)
        finally:
            release_left()
        return 0

    def __reduce__(self):
        refuse_copy(self, "call current() in the other process")


make_only_here(CurrentBlock, "a block comes from Context.current()")


cdef int call_without_tuples() except -1:
    cdef CurrentBlock block = CurrentBlock.__new__(CurrentBlock)
    gctx_set_vectorcall(CurrentBlock, <char*>&block._call - <char*><PyObject*>block)
    return 0


call_without_tuples()


cdef CurrentBlock new_block(Slot[ContextBox]* slot, object context):
    """A new block of a context, whose slot it uses as long as it keeps the object."""
    cdef CurrentBlock block = CurrentBlock.__new__(CurrentBlock)
    block._call = <void*>call_block
    block._slot = slot
    block._context = context
    block._entry.set_block(<void*>block)
    return block
