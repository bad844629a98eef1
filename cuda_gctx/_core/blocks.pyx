"""Blocks that make a context current on a thread, each for one task of it."""


cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030D0000 && !defined(PyThreadState_GetUnchecked)
    #define PyThreadState_GetUnchecked _PyThreadState_UncheckedGet
    #endif

    /* Each task of asyncio, trio, anyio and gevent, and each greenlet, has a contextvars.Context of its own. Where a
       thread or a greenlet has none yet, copying it makes one, as the first variable would. */
    static void* gctx_task_of(PyThreadState* state) {
      if (state->context == NULL) {
        PyObject* const copy = PyContext_CopyCurrent();
        if (copy == NULL) {
          return NULL;
        }
        Py_DECREF(copy);
      }
      return state->context;
    }

    /* Of the thread: its state, once the end of that is watched, and what given_here() returns, of _ThreadEnd. */
    #define GCTX_OF_THREAD static __attribute__((tls_model("initial-exec"))) __thread
    GCTX_OF_THREAD PyThreadState* gctx_watched;
    GCTX_OF_THREAD PyObject* gctx_given;
    """
    ctypedef struct PyThreadState:
        pass

    PyThreadState* watched "gctx_watched"
    PyObject* given "gctx_given"
    PyThreadState* PyThreadState_GetUnchecked() noexcept
    PyObject* PyThreadState_GetDict() noexcept
    void* task_of "gctx_task_of"(PyThreadState*) except NULL


cdef class _ThreadEnd:
    """Ends the blocks of a thread when Python destroys its state, which is before join() returns."""

    cdef cpp.ThreadBlocks* _blocks
    cdef dict _given

    def __dealloc__(self):
        global watched
        # The interpreter destroys the states of other threads when it ends, and in a forked child.
        if self._blocks == cpp.this_thread():
            watched = NULL
            self._blocks.end()
            report_failures()


cdef int watch_thread(PyThreadState* state) except -1:
    """Make sure that the blocks of the calling thread end before join() returns.

    The system reports the end of a thread only after join().
    """
    global watched, given
    cdef _ThreadEnd end
    if watched != state:
        end = _ThreadEnd()
        end._blocks = cpp.this_thread()
        end._given = {}
        (<dict>PyThreadState_GetDict())["cuda_gctx"] = end
        watched = state
        given = <PyObject*>end._given
    return 0


cdef dict given_here():
    """Return weak references to what set_current() was given on this thread, by the ids of the contexts."""
    watch_thread(PyThreadState_GetUnchecked())
    return <dict>given


@cython.final
@cython.freelist(8)
@cython.no_gc_clear  # __dealloc__ looks at the task
cdef class CurrentBlock:
    """A ``with`` block in which a context is current on the calling thread."""

    cdef Context _context
    cdef object _task  # its address tells tasks apart, and is not used again while the block is open
    cdef cpp.BlockHandle _block

    def __dealloc__(self):
        if self._block.get() != NULL:
            Py_INCREF(self._task)  # for ever: the block is open until its thread ends

    @cython.binding(False)
    def __enter__(self):
        cdef PyThreadState* state = PyThreadState_GetUnchecked()
        # Steps that can raise come before the push.
        cdef void* task = task_of(state)
        cdef cpp.ContextHandle context
        watch_thread(state)
        with cython.critical_section(self):
            if self._block.get() != NULL:
                raise RuntimeError("this block is already open: each block needs a current() of its own")
            context = self._context._slot.get()
            if context.get() == NULL:
                cpp.live(self._context._slot)
            self._block = cpp.this_thread().enter(move(context), task)
            self._task = <object>task
        return self._context

    @cython.binding(False)
    def __exit__(self, kind, error, trace):
        cdef cpp.BlockHandle block
        with cython.critical_section(self):
            block.swap(self._block)
            if block.get() == NULL:
                raise RuntimeError("this block is not open: it has been left already")
            self._task = None
            cpp.this_thread().leave(block, task_of(PyThreadState_GetUnchecked()))


make_only_here(CurrentBlock, "a block comes from Context.current()")
