"""Checks of the arguments of the public classes."""


cdef object LARGEST_HANDLE = 2**64 - 1


cdef str type_name(object value):
    return type(value).__name__


cdef str allowed_ints(object least, object most):
    if most is not None:
        return f"an int from {least} to {most}"
    return "an int" if least is None else f"an int of at least {least}"


cdef bint is_bool(object value):
    """Tell bools, also those of numpy: its releases before 2.3 convert theirs to an int, with a warning."""
    numpy = sys.modules.get("numpy")
    return isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_))


cpdef object as_int(str name, object value, object least=None, object most=None):
    """`value` as an int: an int, one of numpy, or another object with ``__index__``, but not a bool.

    least, most: what is allowed; a `most` needs a `least`. Raises TypeError or ValueError.
    """
    if type(value) is int:
        number = value
    else:
        try:
            if is_bool(value):
                raise TypeError
            number = index(value)
        except TypeError:
            raise TypeError(f"{name} must be {allowed_ints(least, most)}, not {type_name(value)}") from None
    if (least is not None and number < least) or (most is not None and number > most):
        raise ValueError(f"{name} must be {allowed_ints(least, most)}, not {number}")
    return number


cpdef object as_sm_count(str name, object value, object most=None):
    """`value` as a number of SMs; None for None and for 0, with which the driver requests all remaining SMs."""
    if value is None:
        return None
    number = as_int(name, value)
    if number < 0:
        raise ValueError(f"{name} must be non-negative (0 and None: all remaining SMs), not {number}")
    return as_int(name, number, 0, most) or None


cpdef object as_number(str name, object value, str allowed="a number"):
    """`value` as a float: an int, a float, or a number of numpy, but not a bool. `allowed` is for the TypeError."""
    if type(value) is float and value == value:
        return value
    from numbers import Real  # numpy registers its numbers there

    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {allowed}, not {type_name(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if number != number:
        raise ValueError(f"{name} must be {allowed}, not nan")
    return number


cpdef object as_seconds(str name, object value, object least=None, object most=None):
    """`value` as a positive, finite number of seconds.

    least, most: what is allowed. Raises TypeError or ValueError.
    """
    allowed = "a positive number of seconds" if least is None else f"a number of seconds from {least} to {most}"
    seconds = as_number(name, value, allowed)
    if not (0 < seconds < math.inf) or (least is not None and not least <= seconds <= most):
        raise ValueError(f"{name} must be {allowed}, not {value}")
    return seconds


cpdef object as_bool(str name, object value):
    """`value` as a bool: a bool, or one of numpy."""
    if is_bool(value):
        return bool(value)
    raise TypeError(f"{name} must be a bool, not {type_name(value)}")


cdef object as_handle(object value, str what=None):
    """`value` as the address of a driver object. `what` that is, where it cannot be 0."""
    number = as_int("handle", value, 0, LARGEST_HANDLE)
    if number == 0 and what is not None:
        raise ValueError(f"0 is not a valid handle of a {what}")
    return number


cdef dict fields_of_class = {}


cdef class DataclassFields:
    """The fields of options, as the functions of dataclasses look for them."""

    def __get__(self, instance, kind):
        if kind not in fields_of_class:
            from dataclasses import field, make_dataclass  # takes longer than the import of this package

            fields = [
                (name, object) if default is ... else (name, object, field(default=default))
                for name, default in kind._defaults.items()
            ]
            fields_of_class[kind] = make_dataclass("Options", fields).__dataclass_fields__
        return fields_of_class[kind]


cdef class Options:
    """Values of named fields. Immutable; `replace`, ``copy.replace`` and the functions of dataclasses accept them."""

    _defaults = {}  # by the names of the fields, in their order; without a default: ``...``
    __dataclass_fields__ = DataclassFields()

    cdef dict values(self):
        """The values by the names of the fields, in their order."""
        return {name: getattr(self, name) for name in self._defaults}

    def __reduce__(self):
        return type(self), tuple(self.values().values())

    def __eq__(self, other):
        if not isinstance(other, type(self)) and not isinstance(self, type(other)):
            return NotImplemented
        return self.values() == (<Options>other).values()

    def __hash__(self):
        return hash(tuple(self.values().values()))

    def __repr__(self):
        (name, value), *others = self.values().items()
        shown = [(name, value), *[(name, value) for name, value in others if value != self._defaults[name]]]
        return f"{type(self).__name__}({', '.join([f'{name}={value!r}' for name, value in shown])})"

    def replace(self, **changes):
        """A copy with other values for some fields.

        changes: the new values, by the names of the fields.
        """
        return of_fields(type(self), self.values() | changes)

    def __replace__(self, **changes):
        return self.replace(**changes)


cdef str field_problem(type kind, object values):
    """What is wrong with the names of some fields; None if nothing is."""
    from dataclasses import MISSING
    from difflib import get_close_matches

    fields = kind.__dataclass_fields__
    for name in values:
        if name not in fields:
            near = get_close_matches(str(name), fields, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"its fields are {', '.join(fields)}"
            return f"{kind.__name__} has no field {name!r}; {advice}"
    for name, field in fields.items():
        if name not in values and field.init and field.default is MISSING and field.default_factory is MISSING:
            return f"{kind.__name__} needs the field {name!r}"
    return None


cpdef object of_fields(type kind, object values):
    """An object of a kind from a mapping of its fields. TypeError names a field that is wrong or missing."""
    try:
        return kind(**values)
    except TypeError:
        problem = field_problem(kind, values)
        if problem is None:
            raise
    raise TypeError(problem)


cdef object as_options(type kind, object value):
    """Options of a kind, from an object of that kind or a mapping of its fields; None stays None."""
    if value is None or isinstance(value, kind):
        return value
    if isinstance(value, Mapping):
        return of_fields(kind, value)
    first = next(iter(kind.__dataclass_fields__))
    raise TypeError(
        f'options must be {kind.__name__} or a dict of its fields, like {{"{first}": ...}}, not {type(value).__name__}'
    )


def spelling(tuple requests, dict named):
    """A set of requests as a key, given as the arguments of a call: by name, by position, or as one dict, tuple or
    list.

    What else is given alone is returned as it is; None if nothing can be remembered. The order of the names and the
    types of the requests belong to the key: 1, 1.0 and True are equal, but not the same request.
    """
    cdef dict copied
    cdef list spelled
    asked = requests
    if named:
        asked = None if requests else named
    elif len(requests) == 1 and type(requests[0]) is not int:
        asked = requests[0]
    # Each allocation can run a collection, and with it code that changes the requests. So they are copied first, in two
    # ways that allocate before they read: tuple(list) and dict.copy() of Python 3.11 do not.
    if type(asked) is dict:
        copied = {}
        copied.update(asked)
        spelled = [dict]
        for name, value in copied.items():
            spelled.append(name)
            spelled.append(value)
            spelled.append(type(value))
        return tuple(spelled)
    if type(asked) is not tuple and type(asked) is not list:
        return None if isinstance(asked, tuple) else asked
    spelled = [tuple]
    for value in list(asked):
        spelled.append(value)
        spelled.append(type(value))
    return tuple(spelled)


def requests_of(tuple spelled not None):
    """The requests of a key that spelling() made: a dict, or a tuple."""
    if spelled[0] is dict:
        return dict(zip(spelled[1::3], spelled[2::3]))
    return spelled[1::2]


cdef extern from *:
    """
    /* What a cdef class cannot declare: attributes of its own, and by what it is made. */
    static int gctx_declare(PyObject *kind, PyObject *own, PyObject *(*make)(PyTypeObject *, PyObject *, PyObject *)) {
      PyTypeObject *const type = (PyTypeObject *)kind;
      if (make != NULL) {
        type->tp_new = make;
        type->tp_vectorcall = NULL;
      }
      const int failed = PyDict_Update(type->tp_dict, own);
      PyType_Modified(type);
      return failed;
    }
    """
    int gctx_declare(object kind, object own, object (*make)(type, PyObject*, PyObject*)) except -1


cdef object refuse_new(type kind, PyObject* args, PyObject* keywords):
    raise TypeError(kind._made_by)


def _refuse_copy(self):
    raise TypeError(
        f"{type(self).__name__} objects cannot be pickled or copied: make one in the other process; {self._made_by}"
    )


cdef int make_here(type kind, str advice) except -1:
    """Refuse pickle and copy of what belongs to its process; the advice says what makes one."""
    return gctx_declare(kind, {"__reduce__": _refuse_copy, "_made_by": advice}, NULL)


cdef int make_only_here(type kind, str advice) except -1:
    """The same, and refuse the class and its __new__ outside of its own module, so that no empty object exists."""
    return gctx_declare(kind, {"__reduce__": _refuse_copy, "_made_by": advice}, refuse_new)


cdef class MadeByCalls:
    """The base of a class in Python whose objects come from calls, which its `_made_by` names."""

    def __init__(self, *args, **kwargs):
        raise TypeError(self._made_by)


make_here(MadeByCalls, "an object comes from the calls of its class, which derives from MadeByCalls")


def environment_variable(bytes name not None):
    """The value of an environment variable, or None, for quick calls: os.environ.get() takes a microsecond."""
    cdef const char* value = getenv(name)
    return None if value is NULL else os.fsdecode(value)
