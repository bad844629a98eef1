"""The control interface of the software driver, through ctypes: its functions with their types."""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

__all__ = ["Block", "Library", "library_folder", "library_path", "programs_folder"]

# An editable install compiles changed sources when one of its compiled files is looked up as a module.
find_spec(f"{__name__.rpartition('.')[0]}.lib.libcuda_software_driver")


def library_folder() -> str:
    """The folder with the software driver under the driver's own names: ``libcuda.so.1`` and ``libcuda.so``."""
    # An editable install keeps what is compiled apart from the sources, and the package has both folders.
    folders = [
        os.path.join(os.path.abspath(folder), "lib") for folder in sys.modules[__name__.rpartition(".")[0]].__path__
    ]
    return next(filter(os.path.isdir, folders), folders[0])


def library_path() -> str:
    """The software driver itself."""
    return os.path.join(library_folder(), "libcuda_software_driver.so")


def programs_folder() -> str:
    """The folder with the stand-in for ``nvidia-cuda-mps-control``, for the PATH of programs."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")


class Block(ctypes.Structure):
    """One block of a running kernel, as a registered function sees it (``softwareDriverBlock``)."""

    _fields_ = [
        ("block", ctypes.c_uint * 3),
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("index", ctypes.c_uint),
        ("smid", ctypes.c_uint),
        ("device", ctypes.c_int),
        ("argument_count", ctypes.c_uint),
        ("start_ns", ctypes.c_uint64),
        ("end_ns", ctypes.c_uint64),
        ("_arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("_argument_sizes", ctypes.POINTER(ctypes.c_size_t)),
    ]

    @property
    def arguments(self) -> list[int]:
        """The launch's arguments as unsigned integers, one per parameter."""
        return [int.from_bytes(raw, "little") for raw in self.raw_arguments]

    @property
    def raw_arguments(self) -> list[bytes]:
        """The launch's arguments as bytes, one per parameter."""
        return [ctypes.string_at(self._arguments[i] or 0, self._argument_sizes[i]) for i in range(self.argument_count)]


class KernelCost(ctypes.Structure):
    """What a block of a kernel costs (``softwareDriverKernelCost``)."""

    _fields_ = [
        ("block_ns", ctypes.c_uint64),
        ("block_bytes", ctypes.c_uint64),
        ("throughput", ctypes.c_double),
        ("registers", ctypes.c_uint),
        ("tiles", ctypes.c_uint64),
        ("tile_ns", ctypes.c_uint64),
        ("tile_bytes", ctypes.c_uint64),
    ]


RecordFunction = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
KernelFunction = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Block))


class Library:
    """The loaded library. Loading it starts no machine."""

    def __init__(self) -> None:
        path = library_path()
        if not os.path.exists(path):
            raise RuntimeError(f"the software driver is not installed: {path} is missing; install cuda-software-driver")
        # RTLD_LOCAL keeps its symbols from being taken for the real driver's.
        self._lib = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        lib = self._lib
        for name in (
            "Ledger",
            "Calls",
            "Memory",
            "Faults",
            "Profiles",
            "Drivers",
            "Explain",
            "Instructions",
            "Machine",
        ):
            getattr(lib, f"softwareDriver{name}").restype = ctypes.c_char_p
            getattr(lib, f"softwareDriver{name}").argtypes = []
        lib.softwareDriverConfigure.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
        lib.softwareDriverFailNth.argtypes = [ctypes.c_char_p, ctypes.c_ulonglong, ctypes.c_int]
        lib.softwareDriverFailEvery.argtypes = [ctypes.c_char_p, ctypes.c_int]
        lib.softwareDriverFailRandomly.argtypes = [ctypes.c_char_p, ctypes.c_double, ctypes.c_ulonglong, ctypes.c_int]
        lib.softwareDriverLimitContexts.argtypes = [ctypes.c_uint]
        lib.softwareDriverLimitContexts.restype = None
        lib.softwareDriverClearFaults.restype = None
        lib.softwareDriverKernel.argtypes = [
            ctypes.c_char_p,
            KernelFunction,
            ctypes.c_void_p,
            ctypes.POINTER(KernelCost),
            ctypes.POINTER(ctypes.c_size_t),
            ctypes.c_uint,
        ]
        numbers = ctypes.POINTER(ctypes.c_uint)
        lib.softwareDriverKernelAccess.argtypes = [ctypes.c_char_p, numbers, ctypes.c_uint, numbers, ctypes.c_uint]
        lib.softwareDriverView.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
        lib.softwareDriverView.restype = ctypes.c_void_p
        lib.softwareDriverTrace.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        lib.softwareDriverTrace.restype = None
        lib.softwareDriverTime.restype = ctypes.c_uint64
        lib.softwareDriverAdvance.argtypes = [ctypes.c_uint64]
        lib.softwareDriverAdvance.restype = None
        lib.softwareDriverErrorCode.argtypes = [ctypes.c_char_p]

    def answer(self, what: str) -> Any:
        """Call a function that answers in JSON: ``answer("Ledger")`` calls ``softwareDriverLedger``."""
        text: bytes = getattr(self._lib, f"softwareDriver{what}")()
        return json.loads(text)

    def configure(self, spec: str) -> None:
        """Start a fresh machine."""
        error = ctypes.create_string_buffer(512)
        if self._lib.softwareDriverConfigure(spec.encode(), error, len(error)) != 0:
            raise ValueError(f"cannot simulate {spec!r}: {error.value.decode()}")

    def push(self) -> None:
        """Suspend the current machine."""
        self._lib.softwareDriverPush()

    def pop(self) -> None:
        """Resume the machine that was suspended last."""
        self._lib.softwareDriverPop()

    def error_code(self, code: str | int) -> int:
        """The number of a CUresult given by name or number."""
        if isinstance(code, int):
            return code
        number: int = self._lib.softwareDriverErrorCode(code.encode())
        if number < 0:
            raise ValueError(f"{code!r} is not the name of a CUresult; one is CUDA_ERROR_OUT_OF_MEMORY")
        return number

    def fail(self, function: str, code: int, *, nth: int | None, probability: float | None, seed: int) -> None:
        """Add a fault rule."""
        name = function.encode()
        if nth is not None:
            result = self._lib.softwareDriverFailNth(name, nth, code) if nth > 0 else -1
        elif probability is not None:
            result = self._lib.softwareDriverFailRandomly(name, probability, seed, code)
        else:
            result = self._lib.softwareDriverFailEvery(name, code)
        if result != 0:
            raise ValueError(self._why_no_rule(function, code, nth, probability))

    def _why_no_rule(self, function: str, code: int, nth: int | None, probability: float | None) -> str:
        if code == 0:
            return "code is 0 (CUDA_SUCCESS); it must be an error"
        if nth is not None and nth < 1:
            return f"nth is {nth}; the next call has number 1"
        if probability is not None and not 0 <= probability <= 1:
            return f"probability is {probability}; it must be 0 to 1"
        if hasattr(self._lib, function):
            return f"{function} is not modelled: each call returns CUDA_ERROR_NOT_SUPPORTED"
        # The names of the functions are in the library's table of symbols.
        with open(library_path(), "rb") as file:
            names = {name.decode() for name in re.findall(rb"\bcu[A-Z]\w+", file.read())}
        near = get_close_matches(function, sorted(name for name in names if hasattr(self._lib, name)), n=1)
        advice = (
            f"did you mean {near[0]!r}?" if near else "software_driver/cpp/abi/functions.def lists them, and '*' is any"
        )
        return f"{function!r} is not a function of the software driver: {advice}"

    def limit_contexts(self, count: int) -> None:
        """Fail with out of memory when this many green contexts are alive (0: no limit)."""
        self._lib.softwareDriverLimitContexts(count)

    def clear_faults(self) -> None:
        """Drop all fault rules."""
        self._lib.softwareDriverClearFaults()

    def kernel(
        self, name: str, function: Callable[[Block], None] | None, cost: KernelCost, sizes: Sequence[int] | None
    ) -> object:
        """Register a kernel. Keep the result alive as long as the kernel may run."""

        def run(_user: int | None, block: Any) -> int:
            try:
                if function is not None:
                    function(block.contents)
            # The launch fails; ctypes would drop the exception, and the launch would count as carried out.
            except BaseException:
                traceback.print_exc()
                return 1
            return 0

        callback = KernelFunction(run) if function is not None else KernelFunction()
        array = None if sizes is None else (ctypes.c_size_t * len(sizes))(*sizes)
        count = 0 if sizes is None else len(sizes)
        if self._lib.softwareDriverKernel(name.encode(), callback, None, ctypes.byref(cost), array, count):
            raise RuntimeError("no machine is simulated")
        return callback

    def kernel_access(self, name: str, reads: Sequence[int] | None, writes: Sequence[int] | None) -> None:
        """Set the arguments through which a registered kernel reads and writes memory; None: all of them."""
        lists: list[Any] = []
        for numbers in (reads, writes):
            lists += [None, 0] if numbers is None else [(ctypes.c_uint * len(numbers))(*numbers), len(numbers)]
        self._lib.softwareDriverKernelAccess(name.encode(), *lists)

    def view(self, address: int, size: int) -> memoryview:
        """The bytes of device memory."""
        found = self._lib.softwareDriverView(address, size)
        if not found:
            raise ValueError(f"the machine does not have {size} bytes of memory at {address:#x}")
        return memoryview((ctypes.c_char * size).from_address(found)).cast("B")

    def trace(self, record: object | None) -> None:
        """Run a RecordFunction with the id of each object that this thread makes; None: no longer.

        The interpreter runs it on the main thread, right after the call that made the object. Calling back from inside
        the driver would ask for the interpreter while locks are held.
        """
        if record is None:
            self._lib.softwareDriverTrace(None, None)
            return
        schedule = ctypes.cast(ctypes.pythonapi.Py_AddPendingCall, ctypes.c_void_p)
        self._lib.softwareDriverTrace(schedule, ctypes.cast(record, ctypes.c_void_p))  # type: ignore[arg-type]

    def time_ns(self) -> int:
        """Virtual nanoseconds since the machine started."""
        time: int = self._lib.softwareDriverTime()
        return time

    def advance(self, ns: int) -> None:
        """Advance the virtual clock."""
        self._lib.softwareDriverAdvance(ns)
