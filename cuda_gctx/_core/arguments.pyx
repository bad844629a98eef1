"""Arguments of the public classes, checked with one set of words."""

from operator import index


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
