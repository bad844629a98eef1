"""Checks of the arguments of the public classes."""

from collections.abc import Mapping
from operator import index

from cpython.object cimport PyObject


cdef object as_int(str name, object value):
    """`value` as an int; TypeError for a bool."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not a bool")
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from None


cdef object as_bool(str name, object value):
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
    return value


cdef object as_handle(object value):
    """`value` as the address of a driver object."""
    number = as_int("handle", value)
    if not 0 <= number < 2**64:
        raise ValueError(f"{number} is not a valid handle")
    return number


cdef object as_options(type kind, object value):
    """Options of a kind, from an object of that kind or a mapping of its fields; None stays None."""
    if value is None or isinstance(value, kind):
        return value
    if isinstance(value, Mapping):
        return kind(**value)
    raise TypeError(f"options must be {kind.__name__} or a dict of its fields, not {type(value).__name__}")


cdef extern from *:
    """
    static void gctx_set_new(PyObject *kind, PyObject *(*function)(PyTypeObject *, PyObject *, PyObject *)) {
      ((PyTypeObject *)kind)->tp_new = function;
      ((PyTypeObject *)kind)->tp_vectorcall = NULL;
      PyType_Modified((PyTypeObject *)kind);
    }
    """
    void gctx_set_new(object kind, object (*function)(type, PyObject*, PyObject*))


cdef dict advice_of_class = {}


cdef object refuse_new(type kind, PyObject* args, PyObject* keywords):
    for base in kind.__mro__:
        if base in advice_of_class:
            raise TypeError(advice_of_class[base])
    raise TypeError(f"{kind.__name__} cannot be constructed directly")


cdef int make_only_here(type kind, str advice) except -1:
    """Refuse the class and its __new__ outside of its own module, so that no empty object exists."""
    advice_of_class[kind] = advice
    gctx_set_new(kind, refuse_new)
    return 0


cdef object refuse_copy(object thing, str advice):
    """Raise TypeError for pickle and copy: a body for __reduce__."""
    raise TypeError(f"a {type(thing).__name__} cannot be pickled or copied: {advice}")
