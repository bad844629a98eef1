"""The order between the arrangements of a pool, in one call without the GIL, and the switches to known ones.

A switch is called between launches, which leave the caches to others: the code here touches few objects, and no frames
of Python.
"""


cdef vector[unsigned int] ascending(sm_ids):
    cdef vector[unsigned int] ids
    sm_ids = sm_ids or ()
    for one in sorted(sm_ids):  # Cython 3.2 does not compile sorted(sm_ids or ())
        ids.push_back(one)
    return move(ids)  # a copy may throw where nothing catches it


cdef class Numbered:
    """What a switch reads of an arrangement.

    number: its number in the core. last_switch: the number of the last switch to it; 0 before the first. streams: the
    streams of the parts of a plan.
    """

    cdef readonly unsigned int number
    cdef readonly uint64_t last_switch
    cdef readonly dict streams

    def __init__(self, unsigned int number, streams):
        self.number = number
        self.streams = dict(streams)

    @property
    def is_open(self):
        """Whether all streams are open."""
        return self._is_open()

    cdef bint _is_open(self) except -1:
        for stream in self.streams.values():
            if (<Stream?>stream)._slot.borrow().get() == NULL:
                return False
        return True


cdef class Switching:
    """Arrangements, each of which has parts in places: contexts, or streams on the whole device. One is current.

    Under the lock of the pool, which switch_known() and switch_to_known() take themselves.

    current: the arrangement of the last switch. by_key: the arrangements by partitions or plan. left_in_capture: those
    that were left during a capture, which could not record the work outside of it.
    """

    cdef cpp.Switching _switching
    cdef vector[unsigned int] _left
    cdef object _acquire
    cdef object _release
    cdef dict _prepared
    cdef uint64_t _switches
    cdef public Numbered current
    cdef readonly dict by_key
    cdef readonly dict left_in_capture

    def __init__(self, lock, dict prepared not None):
        """lock: of the pool, reentrant. prepared: the partitions of the pool by their spellings."""
        self._acquire, self._release = lock.acquire, lock.release
        self._prepared = prepared
        self.by_key = {}
        self.left_in_capture = {}

    def __dealloc__(self):
        cpp.clear_arrangements(self._switching)

    def clear(self):
        """Forget all arrangements."""
        self.current = None
        self.by_key.clear()
        self.left_in_capture.clear()
        cpp.clear_arrangements(self._switching)

    @cython.binding(False)
    def switch_known(self, spelled):
        """Switch to the partitions of a spelling, and return them; None where switch_to_known() returns it."""
        try:
            parts = self._prepared.get(spelled)
        except TypeError:  # an unhashable value
            return None
        return None if parts is None or self.switch_to_known(parts) is None else parts

    @cython.binding(False)
    def switch_to_known(self, key):
        """Switch to the arrangement of a key, and return it; None, and nothing has been done, if there is none, if one
        of its streams is closed, and while a stream captures or the pool has left arrangements in a capture.
        """
        cdef Numbered new
        self._acquire()
        try:
            new = self.by_key.get(key)
            return new if new is not None and new._is_open() and self._enter(new) else None
        finally:
            self._release()

    @cython.binding(False)
    def enter_outside_capture(self, Numbered new not None):
        """Make an arrangement current, behind the work of the earlier one; False, and nothing has been done, during a
        capture and after it.
        """
        return self._enter(new)

    cdef bint _enter(self, Numbered new) except -1:
        cdef Numbered old = self.current
        if self.left_in_capture:
            return False
        if old is not None and old is not new:
            self._left.clear()
            self._left.push_back(old.number)
            if not cpp.order(self._switching, self._left, new.number):
                return False
        if old is not new:
            self._make_current(new)
        return True

    cdef int _make_current(self, Numbered new) except -1:
        self.current = new
        self._switches += 1
        new.last_switch = self._switches
        return 0

    def make_current(self, Numbered new not None):
        """Note that an arrangement is current now."""
        self._make_current(new)

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

    def parts(self):
        """The numbers of the parts of all arrangements, and of the parts whose work a switch may still wait for."""
        return set(self._switching.parts())

    def may_share(self, unsigned int one, unsigned int other):
        """Whether two places share SMs, or may."""
        return self._switching.may_share(one, other)

    def note_sm_ids(self, Context context not None, sm_ids):
        """Record on which SMs a kernel saw a context run."""
        cpp.note_sm_ids(self._switching, context._slot, ascending(sm_ids))

    def order_all(self, left, unsigned int next):
        """Put the later work of an arrangement behind that of those that were left, the last of which is current;
        during a capture, do nothing: False.
        """
        self._left.clear()
        for one in left:
            self._left.push_back(one)
        return bool(cpp.order(self._switching, self._left, next))
