cimport cython

from cuda_gctx._core.cpp cimport Runtime


cdef Runtime* active_runtime() except NULL


# An object that can be closed on one thread while calls on it run on others. The GIL guards the two words: they
# are changed only with it, and a call that lets it go holds a pin meanwhile. The last pin lets go of what was closed.
cdef class Closable:
    cdef int _pins
    cdef bint _closing

    cdef void let_go(self) noexcept

    @cython.final
    cdef inline int demand_unclosed(self) except -1:
        if self._closing:
            raise RuntimeError(f"the {type(self).__name__.lower()} has been closed")
        return 0

    # Kept while a call without the GIL is under way; each pin needs an unpin.
    @cython.final
    cdef inline int pin(self) except -1:
        self.demand_unclosed()
        self._pins += 1
        return 0

    @cython.final
    cdef inline void unpin(self) noexcept:
        self._pins -= 1
        if self._closing and self._pins == 0:
            self.let_go()

    @cython.final
    cdef inline void close_unless_pinned(self) noexcept:
        self._closing = True
        if self._pins == 0:
            self.let_go()
