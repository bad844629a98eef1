"""The classes of the package over the C++ core, in one extension module.

They are one module because they return each other: a Device has contexts, a context has streams, and a stream has a
device. Each file below has one subject.
"""

import atexit
import math
import os
import sys
import warnings
from _thread import get_ident
from collections import namedtuple
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, nullcontext
from enum import Enum
from operator import index
from types import MappingProxyType
from weakref import ref

cimport cython
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_INCREF
from cython.operator cimport dereference
from libc.stdint cimport uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport getenv
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.optional cimport optional
from libcpp.utility cimport move
from libcpp.vector cimport vector

cimport cuda_gctx._core.cpp as cpp

from cuda_gctx._core.polling import until_done

include "errors.pyx"
include "arguments.pyx"
include "driver.pyx"
include "blocks.pyx"
include "resources.pyx"
include "event.pyx"
include "stream.pyx"
include "context.pyx"
include "device.pyx"
include "graph.pyx"
include "probe.pyx"
include "sequence.pyx"
include "switching.pyx"
