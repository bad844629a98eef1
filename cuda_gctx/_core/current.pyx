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

    /* What is known of the thread: its state, once the end of that is watched, which takes place on the thread itself,
       or when none runs any more; the list of its entries; and what given_here() returns, part of its _ThreadEnd. */
    #define GCTX_OF_THREAD static __attribute__((tls_model("initial-exec"))) __thread
    GCTX_OF_THREAD PyThreadState* gctx_watched;
    GCTX_OF_THREAD gctx::ThreadEntries* gctx_entries;
    GCTX_OF_THREAD PyObject* gctx_given;
    #define gctx_watched_task() ((void*)gctx_watched->context)
    """
    ctypedef struct PyThreadState:
        pass

    PyThreadState* watched "gctx_watched"
    cpp.ThreadEntries* entries "gctx_entries"
    PyObject* given "gctx_given"
    void* watched_task "gctx_watched_task"() noexcept
    PyThreadState* PyThreadState_GetUnchecked() noexcept
    PyObject* PyThreadState_GetDict() noexcept
    void* task_of "gctx_task_of"(PyThreadState*) except NULL


cdef extern from *:
    Py_ssize_t Py_REFCNT(PyObject*) noexcept


cdef bint is_free(PyObject* kept) noexcept:
    """Whether the block that a context keeps, if it has one, is there and has no other user."""
    return kept != NULL and Py_REFCNT(kept) == 1 and (<CurrentBlock>kept)._entry.is_idle()


cdef void* task_here() except NULL:
    """What tells the tasks of a thread apart, borrowed."""
    return task_of(PyThreadState_GetUnchecked())


cdef class _ThreadEnd:
    """Removes the current contexts of a thread when Python destroys its state, which is before join() returns."""

    cdef cpp.ThreadEntries* _entries
    cdef dict _given

    def __dealloc__(self):
        global watched, entries
        # The interpreter destroys the states of other threads when it ends, and in a forked child.
        if self._entries == cpp.this_thread():
            watched = NULL
            entries = NULL
            cpp.end_thread()
            release_left()


cdef int watch_thread() except -1:
    """Make sure that the calling thread's current contexts are removed before join() returns.

    The system reports the end of a thread only after join().
    """
    global watched, entries, given
    cdef PyThreadState* state = PyThreadState_GetUnchecked()
    cdef _ThreadEnd end
    if watched != state:
        end = _ThreadEnd()
        end._entries = cpp.this_thread()
        end._given = {}
        (<dict>PyThreadState_GetDict())["cuda_gctx"] = end
        watched = state
        entries = end._entries
        given = <PyObject*>end._given
    return 0


cdef dict given_here():
    """By the ids of their contexts, weak references to the objects that set_current() was given on this thread."""
    watch_thread()
    return <dict>given


cdef void release_left() noexcept:
    """Let go of blocks that have left the list of this thread, and tell what failed with their contexts."""
    cdef CurrentBlock block
    cdef cpp.Entry* entry = cpp.this_thread().take_left()
    while entry != NULL:
        block = <CurrentBlock>entry.block()
        block.leave_list()
        cpp.renew(block._entry.context(), block._slot[0])
        entry = cpp.this_thread().take_left()
    report_failures()


cdef extern from *:
    """
    /* What a cdef class cannot declare: a call without a tuple of the arguments, and a __get__ that takes no time. */
    static void gctx_set_call(PyObject* type, Py_ssize_t offset) {
      PyTypeObject* const of = (PyTypeObject*)type;
      of->tp_vectorcall_offset = offset;
      of->tp_call = PyVectorcall_Call;
      of->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
      PyType_Modified(of);
    }
    static PyObject* gctx_bind(PyObject* self, PyObject* instance, PyObject* type) {
      (void)type;
      return Py_NewRef(instance != NULL ? instance : self);
    }
    static void gctx_set_bind(PyObject* type) {
      ((PyTypeObject*)type)->tp_descr_get = gctx_bind;
      PyType_Modified((PyTypeObject*)type);
    }
    """
    void gctx_set_call(object, Py_ssize_t) noexcept
    void gctx_set_bind(object) noexcept
    Py_ssize_t PyVectorcall_NARGS(size_t) noexcept


cdef class _Callable:
    """A method of objects that can be called: of an instance, it is the instance itself."""

    def __get__(self, instance, kind):
        return self if instance is None else instance

    def __call__(self, instance, *args):
        return instance(*args)


@cython.final
@cython.no_gc_clear  # the slot is part of the context
cdef class CurrentBlock:
    """A ``with`` block in which a context is current on the calling thread."""

    cdef void* _call  # what Python calls: it enters or leaves the block
    cdef PyObject* _of  # the context, which keeps this block, or is kept by it:
    cdef object _context
    cdef bint _is_live  # nothing has to be asked of the context: it is green, and keeps this block until it is closed
    cdef cpp.Slot[cpp.ContextBox]* _slot  # of the context
    cdef cpp.Entry _entry
    cdef list _more  # blocks for this one, which was entered again before it was left

    # A ``with`` statement makes a bound method of each and throws it away (up to Python 3.13): a seventh of the
    # instructions of a block.
    __enter__ = __exit__ = _Callable()

    def __dealloc__(self):
        if self._slot != NULL and cpp.drop_beside(self._entry.context(), self._slot[0]):
            report_failures()

    cdef void leave_list(self) noexcept:
        Py_DECREF(<object>self._entry.task())
        if self._context is not None:
            Py_DECREF(self)

    cdef object enter_again(self):
        cdef CurrentBlock again = new_block(NULL, self._slot, <object>self._of)
        call_block(again, NULL, 0, NULL)
        if self._more is None:
            self._more = []
        self._more.append(again)
        return <object>self._of

    cdef object leave_slowly(self, const void* task):
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
            cpp.leave(cpp.this_thread(), found._entry, task)
        finally:
            release_left()


cdef object enter(CurrentBlock block):
    cdef PyThreadState* state = PyThreadState_GetUnchecked()
    # What can raise comes before the push.
    cdef void* task = task_of(state)
    if watched != state:
        watch_thread()
    if not block._is_live:
        cpp.live(block._slot[0])
        cpp.demand_there(block._slot[0])
    while not entries.enter(block._entry, task):
        if not block._entry.is_idle():
            return block.enter_again()
        cpp.leave_what_was_left(cpp.this_thread())
        release_left()
    # Until it has left the list of its thread.
    Py_INCREF(<object>task)
    if block._context is not None:
        Py_INCREF(block)
    return <object>block._of


cdef object leave(CurrentBlock block):
    if block._more is None and entries != NULL and entries.leave_at_once(block._entry, watched_task()):
        block.leave_list()
        return None
    return block.leave_slowly(task_here())


cdef object call_block(CurrentBlock block, PyObject** arguments, size_t count, PyObject* names):
    """Enters a block if there are no arguments, and leaves it if there are those of ``__exit__``."""
    with cython.critical_section(block):
        return enter(block) if PyVectorcall_NARGS(count) == 0 else leave(block)


make_only_here(CurrentBlock, "a block comes from Context.current()")


cdef int set_slots() except -1:
    cdef CurrentBlock block = CurrentBlock.__new__(CurrentBlock)
    gctx_set_bind(_Callable)
    gctx_set_call(CurrentBlock, <char*>&block._call - <char*><PyObject*>block)
    return 0


set_slots()


cdef CurrentBlock new_block(PyObject** kept, cpp.Slot[cpp.ContextBox]* slot, object context):
    """A block of a context, for its slot. `kept`: where the context keeps it, if it has none there; or null."""
    cdef CurrentBlock block = CurrentBlock.__new__(CurrentBlock)
    block._call = <void*>call_block
    block._slot = slot
    block._entry.be_of(<void*>block, slot.get())
    block._of = <PyObject*>context
    if cpp.has_gil and kept != NULL and kept[0] == NULL:
        Py_INCREF(block)
        kept[0] = <PyObject*>block
        block._is_live = slot.borrow().get().kind() == cpp.ContextKind.green
    else:
        block._context = context
    return block


cdef void keep_no_block(PyObject** kept, object context) noexcept:
    """The context goes or is closed: if somebody has the block that it keeps, it is kept by that from now on."""
    cdef PyObject* block = kept[0]
    kept[0] = <PyObject*>None
    if block != NULL and block != <PyObject*>None:
        is_open = not (<CurrentBlock>block)._entry.is_idle()
        (<CurrentBlock>block)._is_live = False
        if is_open or Py_REFCNT(block) > 1:
            (<CurrentBlock>block)._context = context
        if not is_open:  # else it is on the list of a thread, which has the reference from now on
            Py_DECREF(<object>block)
