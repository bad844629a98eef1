"""The order between the arrangements of a pool, in one call without the GIL."""

cimport cython
from libcpp.utility cimport move
from libcpp.vector cimport vector

cimport cuda_gctx._core.cpp as cpp
from cuda_gctx._core.context cimport Context
from cuda_gctx._core.resources cimport SMResource
from cuda_gctx._core.stream cimport Stream


cdef vector[unsigned int] ascending(sm_ids):
    cdef vector[unsigned int] ids
    sm_ids = sm_ids or ()
    for one in sorted(sm_ids):  # Cython 3.2 does not compile sorted(sm_ids or ())
        ids.push_back(one)
    return move(ids)  # a copy may throw where nothing catches it


@cython.final
cdef class Switching:
    """Arrangements, each of which has parts in places: contexts, or streams on the whole device.

    Not for several threads at once: the pool has a lock.
    """

    cdef cpp.Switching _switching
    cdef vector[unsigned int] _left

    def __dealloc__(self):
        cpp.clear_arrangements(self._switching)

    def add_arrangement(self, uses):
        """The number of a new arrangement.

        uses: the number of each part, and its Stream on the whole device, or its Context, with the SMResource and the
        ids of its SMs (None: not known).
        """
        cdef vector[cpp.NewUse] all_uses
        cdef cpp.NewUse one
        cdef Context context
        cdef Stream stream
        cdef SMResource sms
        for part, place, resource, sm_ids in uses:
            one = cpp.NewUse()
            one.part = part
            if resource is None:
                stream = place
                cpp.present(stream._slot)
                one.stream = stream._slot.get()
            else:
                context, sms = place, resource
                cpp.present(context._slot)
                one.context = context._slot.get()
                one.sms = sms._sm
                one.ids = ascending(sm_ids)
            all_uses.push_back(one)
        return cpp.add_arrangement(self._switching, all_uses)

    def remove_arrangement(self, unsigned int arrangement):
        """Forget an arrangement, which must not be used any more. Work in its places stays ordered."""
        cpp.remove_arrangement(self._switching, arrangement)

    def places_of(self, unsigned int arrangement):
        """The number of the place of each use."""
        return list(self._switching.places_of(arrangement))

    def may_share(self, unsigned int one, unsigned int other):
        """Whether two places share SMs, or may."""
        return self._switching.may_share(one, other)

    def note_sm_ids(self, Context context not None, sm_ids):
        """Record on which SMs a kernel saw a context run."""
        cpp.note_sm_ids(self._switching, context._slot, ascending(sm_ids))

    @cython.binding(False)
    def order(self, unsigned int old, unsigned int next):
        """Put the later work of an arrangement behind that of the current one; during a capture, do nothing: False."""
        self._left.clear()
        self._left.push_back(old)
        return bool(cpp.order(self._switching, self._left, next))

    def order_all(self, left, unsigned int next):
        """The same for several arrangements that were left, the last of which is current."""
        self._left.clear()
        for one in left:
            self._left.push_back(one)
        return bool(cpp.order(self._switching, self._left, next))
