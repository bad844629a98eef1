"""Blocks that make a context current on a thread, for threads and for asyncio tasks."""

import sys

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from cuda_gctx._core.arguments cimport make_only_here, refuse_copy
from cuda_gctx._core.cpp cimport (
    BlockOwner,
    ContextBox,
    ContextHandle,
    CurrentToken,
    Slot,
    drop,
    end_this_thread,
    live,
    pop_current,
    push_current,
    take_token,
)


cdef extern from *:
    """
    #include <atomic>

    static std::atomic<PyObject*> gctx_context_without_task{NULL};

    /* A task runs in a context of contextvars that has been entered. A thread outside of all has none, or one that it
       got with its first variable, and that nobody can enter: one of these is remembered. */
    static inline int gctx_may_run_task(void) {
      PyObject* const context = PyThreadState_Get()->context;
      return context != NULL && context != gctx_context_without_task.load(std::memory_order_relaxed);
    }
    static int gctx_remember_context(void) {
      PyObject* const context = PyThreadState_Get()->context;
      PyObject* none = NULL;
      if (gctx_context_without_task.load(std::memory_order_relaxed) != NULL) {
        return 0;
      }
      if (PyContext_Enter(context) != 0) {
        PyErr_Clear();  /* it has been entered */
        return 0;
      }
      if (PyContext_Exit(context) != 0) {
        return -1;
      }
      Py_INCREF(context);
      if (!gctx_context_without_task.compare_exchange_strong(none, context)) {
        Py_DECREF(context);
      }
      return 0;
    }
    """
    bint may_run_task "gctx_may_run_task"()
    int remember_context "gctx_remember_context"() except -1


cdef class _ThreadEnd:
    """Removes the current contexts of a thread when Python destroys its state, which is before join() returns."""

    def __dealloc__(self):
        end_this_thread()


cdef int watch_thread() except -1:
    """Make sure that the calling thread's current contexts are removed before join() returns.

    The system reports the end of a thread only after join().
    """
    threading = sys.modules.get("threading")
    if threading is None:
        return 0  # without this module, no thread can be joined
    thread = threading.current_thread()
    # The state of a thread that Python did not start is destroyed after each call into Python, that of the main thread
    # with the interpreter.
    if thread is not threading.main_thread() and not isinstance(thread, threading._DummyThread):
        state = PyThreadState_GetDict()
        if state != NULL:
            (<dict>state)["cuda_gctx"] = _ThreadEnd()
    return 0


cdef class _LoopTurn:
    """Whether an event loop has run since a block was entered: then the block contained an await."""

    cdef object loop
    cdef bint is_over

    def __call__(self):
        self.is_over = True
        self.loop = None


# The latest turn, shared by all blocks of that turn, so that the loop gets one callback.
cdef dict latest = {"turn": None}


cdef _LoopTurn turn_of(loop):
    cdef _LoopTurn turn = latest["turn"]
    if turn is None or turn.is_over or turn.loop is not loop:
        turn = _LoopTurn()
        turn.loop = loop
        loop.call_soon(turn)
        latest["turn"] = turn
    return turn


cdef dict modules = sys.modules
cdef object get_running_loop = None  # asyncio's, once that is loaded


cdef object running_task():
    """The asyncio task on the calling thread, and its loop; None if there is none. Imports nothing."""
    global get_running_loop
    if not may_run_task():
        return None
    if get_running_loop is None:
        asyncio = modules.get("asyncio")
        if asyncio is not None:
            get_running_loop = getattr(asyncio, "_get_running_loop", None)
    loop = None if get_running_loop is None else get_running_loop()
    if loop is None:
        remember_context()
        return None
    task = modules["asyncio"].current_task(loop)
    return None if task is None else (task, loop)


cdef str place_of_caller():
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.endswith("contextlib.py"):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


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
    if PyVectorcall_NARGS(count) == 0:
        block.do_enter()
        return block._context
    block.do_exit(arguments[0] == <PyObject*>None)
    return None


@cython.final
@cython.freelist(8)
@cython.no_gc_clear  # the slot is part of the context
cdef class CurrentBlock:
    """A ``with`` block in which a context is current on the calling thread."""

    # A ``with`` statement makes a bound method of each and throws it away (up to Python 3.13): a seventh of the
    # instructions of a block.
    __enter__ = __exit__ = _Callable()

    cdef int do_enter(self) except -1:
        cdef ContextHandle box
        cdef bint is_new
        found = running_task()
        with cython.critical_section(self):
            live(self._slot[0])
            box = self._slot.get()
            if found is None and not self._is_entered and self._more.empty():
                self._token = push_current(box, NULL)
                self._is_entered = True
                is_new = self._token.is_new_thread
            else:
                is_new = self.enter(box, found)
            if is_new:
                self.watch()
        return 0

    cdef int do_exit(self, bint is_well) except -1:
        with cython.critical_section(self):
            if self._is_entered and self._more.empty() and self._waits is None:
                self._is_entered = False
                self.pop(self._token)
            else:
                self.leave(is_well)
        return 0

    cdef int pop(self, CurrentToken token) except -1:
        cdef Slot[ContextBox] left
        left.put(pop_current(token))
        drop(left)
        return 0

    cdef int enter(self, ContextHandle& box, found) except -1:
        """Enter in a task, or once more before the block is left."""
        cdef BlockOwner owner
        cdef CurrentToken token
        if found is None:
            token = push_current(box, NULL)
        else:
            place = place_of_caller()
            owner.task = <uintptr_t><PyObject*>found[0]
            owner.place = (<str>place).encode("utf-8", "replace")
            token = push_current(box, &owner)
        if self._is_entered or not self._more.empty():
            self._more.push_back(token)
        else:
            self._token = token
            self._is_entered = True
        if found is not None:
            if self._waits is None:
                self._waits = {}
            # The task is kept alive, so that its address is not reused.
            self._waits[token.thread, token.entry] = (turn_of(found[1]), place, found[0])
        return token.is_new_thread

    cdef int watch(self) except -1:
        try:
            watch_thread()
        except BaseException:
            self.leave(False)
            raise
        return 0

    cdef int leave(self, bint is_well) except -1:
        """Leave a block of a task, or one that was entered more than once."""
        cdef CurrentToken token
        cdef _LoopTurn turn
        waited = None
        if self._is_entered and self._more.empty():
            token = self._token
        else:
            if self._is_entered:
                self._more.insert(self._more.begin(), self._token)
            token = take_token(self._more)
        self._is_entered = False
        if self._waits is not None:
            waited = self._waits.pop((token.thread, token.entry), None)
            if not self._waits:
                self._waits = None
        self.pop(token)
        if waited is not None and is_well:
            turn, place, _ = waited
            if turn.is_over:
                raise RuntimeError(
                    f"the block of {self._context!r}, entered at {place}, contained an await: other tasks ran on this "
                    "thread inside it, in its context; end the block before the await, or give the work of coroutines "
                    "explicit streams"
                )
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
    return block
