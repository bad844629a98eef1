"""Arguments of the public classes, checked with one set of words."""

from collections.abc import Mapping
from operator import index

from cpython.object cimport PyObject


cdef object as_int(str name, object value):
    """`value` as an int; a bool is none."""
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
    """`value` as the address that a driver's handle is."""
    number = as_int("handle", value)
    if not 0 <= number < 2**64:
        raise ValueError(f"handle {number} is no address")
    return number


cdef object as_options(type kind, object value):
    """Options of a kind, given as such or as a mapping of their fields; None stays None."""
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
    raise TypeError(f"{kind.__name__} cannot be made so")


cdef int make_only_here(type kind, str advice) except -1:
    """Refuses the class and its __new__ to everybody but its own module: an object without content never exists."""
    advice_of_class[kind] = advice
    gctx_set_new(kind, refuse_new)
    return 0


cdef object refuse_copy(object thing, str advice):
    """For __reduce__: neither pickle nor copy can make another one."""
    raise TypeError(f"a {type(thing).__name__} cannot be pickled or copied, it belongs to this process: {advice}")
