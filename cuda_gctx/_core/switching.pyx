"""The arrangements of a pool, and the switches to known ones.

A switch is called between launches, which leave the caches to others: the code here touches few objects, and no frames
of Python.
"""


cdef class Switching:
    """Arrangements, each of which has parts in places: contexts, or streams on the whole device. One is current.

    The core orders the work of an arrangement behind that of the earlier ones.
    """

    cdef cpp.Switching _switching
    cdef LeaseGroup _group
    cdef dict _prepared
    cdef dict _by_key
    cdef dict _by_number

    def __init__(self, LeaseGroup group not None, dict prepared not None):
        """group: of the pool. prepared: the partitions of the pool by the words in which they were requested."""
        self._group = group
        self._prepared = prepared
        self._by_key = {}
        self._by_number = {}

    def __dealloc__(self):
        cpp.clear_arrangements(self._switching)

    def clear(self):
        """Forget all arrangements."""
        self._by_key.clear()
        self._by_number.clear()
        cpp.clear_arrangements(self._switching)

    @property
    def current(self):
        """The key of the last switch; None before the first one."""
        cdef unsigned int number = self._switching.current()
        return None if number == 0 else self._by_number.get(number - 1)

    @cython.binding(False)
    def switch_known(self, spelled):
        """Switch to the partitions of a request, and return them; None if they are not known."""
        try:
            parts = self._prepared.get(spelled)
        except TypeError:  # an unhashable value
            return None
        return parts if parts is not None and self.switch_to(parts) else None

    @cython.binding(False)
    def switch_to(self, key):
        """Switch to the arrangement of a key; False if there is none."""
        number = self._by_key.get(key)
        if number is None or not self._group.is_open:
            return False
        cpp.switch_to(self._switching, number)
        return True

    def add(self, key, uses):
        """Add an arrangement, in place of the previous one with this key.

        uses: for each part its name, its Stream on the whole device or its Context, and the SMResource of the context.
        """
        cdef vector[cpp.NewUse] all_uses
        cdef cpp.NewUse use
        cdef Context context
        cdef Stream stream
        cdef SMResource sms
        for part, place, resource in uses:
            use = cpp.NewUse()
            encoded = part.encode()
            cpp.name_use(use, encoded)
            if resource is None:
                stream = place
                cpp.present(stream._slot)
                use.stream = stream._slot.get()
            else:
                context, sms = place, resource
                cpp.present(context._slot)
                use.context = context._slot.get()
                use.sms = sms._sm
            all_uses.push_back(use)
        number = cpp.add_arrangement(self._switching, all_uses)
        self._by_number[number] = key
        self._by_key[key] = number

    def remove(self, key):
        """Forget an arrangement. Work in its places stays ordered. False, and nothing changes, for the current one."""
        number = self._by_key.get(key)
        if number is None:
            return True
        if not cpp.remove_arrangement(self._switching, number):
            return False
        self._by_key.pop(key, None)
        self._by_number.pop(number, None)
        return True

    def arrangements(self):
        """The keys of all arrangements, the one that was current longest ago first."""
        return sorted(list(self._by_key), key=self._last_switch)

    def _last_switch(self, key):
        number = self._by_key.get(key)
        return 0 if number is None else cpp.last_switch(self._switching, number)

    def __contains__(self, key):
        return key in self._by_key
