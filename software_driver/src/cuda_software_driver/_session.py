"""The control of a simulated machine: its kernels, faults and clock, and its ledger."""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from ._library import Block, KernelCost, Library, RecordFunction, library_path

__all__ = [
    "Ledger",
    "LedgerError",
    "LiveObject",
    "Misuse",
    "Session",
    "cards",
    "driver_versions",
    "library",
    "make_spec",
    "session",
]

# A handle that no object of the machine ever had: the call returns an error to the program, and nothing is lost. It is
# listed, but does not fail a test, because programs do this on purpose when they are tested with bad input.
_HARMLESS = frozenset({"unknown handle"})

Policy = Literal["ignore", "warn", "error"]

# The folders of packages whose frames say nothing about who made an object.
_hidden = [os.path.dirname(os.path.abspath(__file__)) + os.sep]
_STACK_DEPTH = 24

_lock = threading.Lock()
_library: Library | None = None
# Where traced objects were made, by their ids, which no two machines share; and how many blocks trace.
_stacks: dict[int, traceback.StackSummary] = {}
_tracing = 0


def _remember(number: int | None) -> int:
    # Called by the interpreter between two instructions: below this function lies the line that called the driver.
    frame = sys._getframe().f_back
    if frame is not None:
        walk = traceback.walk_stack(frame)
        _stacks[number or 0] = traceback.StackSummary.extract(walk, limit=_STACK_DEPTH, lookup_lines=False)
    return 0


_record = RecordFunction(_remember)


def library() -> Library:
    """The software driver's control interface, loaded at first use."""
    global _library
    with _lock:
        if _library is None:
            _library = Library()
        return _library


def cards() -> list[dict[str, Any]]:
    """The cards that can be simulated: for each its ``key``, ``name``, ``sm_count`` and more."""
    found: list[dict[str, Any]] = library().answer("Profiles")
    return found


def driver_versions() -> list[str]:
    """The versions of the driver that can be simulated, the oldest first: ``"12.3"`` and so on."""
    found: list[str] = library().answer("Drivers")
    return found


class LedgerError(AssertionError):
    """The program leaked or misused objects of the simulated driver."""

    __module__ = __name__.rpartition(".")[0]  # the public name


@dataclass(frozen=True)
class LiveObject:
    """A driver object that the program created and did not destroy."""

    kind: str
    handle: int
    id: int
    order: int
    thread: int
    device: int
    amount: int
    stack: traceback.StackSummary | None = None  # innermost call first; None where it was not traced

    @property
    def where(self) -> str | None:
        """The line of the program that made it, as ``file:line in function``; None if that is not known."""
        for frame in self.stack or ():
            if not frame.filename.startswith(tuple(_hidden)):
                return f"{frame.filename}:{frame.lineno} in {frame.name}"
        return None

    def __str__(self) -> str:
        size = f", {self.amount} bytes" if "memory" in self.kind and self.kind != "memory pool" else ""
        count = f", {self.amount} times" if self.kind == "primary context retain" else ""
        made = f", made at {self.where}" if self.where else ""
        who = f"number {self.order} by thread {self.thread}"
        return f"{self.kind} {self.handle:#x} (id {self.id}{size}{count}), {who}{made}"


@dataclass(frozen=True)
class Misuse:
    """A call that misused an object."""

    kind: str
    function: str
    handle: int
    thread: int
    order: int
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.function}({self.handle:#x}) by thread {self.thread}: {self.detail}"


@dataclass(frozen=True)
class Ledger:
    """The live objects and the misuse of a simulated machine."""

    live: tuple[LiveObject, ...]
    misuse: tuple[Misuse, ...]
    lost_bytes: int
    green_contexts_made: int
    green_contexts_destroyed: int
    absent: dict[str, int]  # calls of functions that are not modelled

    @property
    def faults(self) -> tuple[Misuse, ...]:
        """The misuse that makes a test fail."""
        return tuple(note for note in self.misuse if note.kind not in _HARMLESS)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is alive and nothing was misused."""
        return not self.live and not self.faults

    def live_of(self, kind: str) -> tuple[LiveObject, ...]:
        """The live objects of one kind, such as ``"stream"``."""
        return tuple(found for found in self.live if found.kind == kind)

    def __str__(self) -> str:
        lines = [f"ledger (simulated): {'clean' if self.is_clean else 'not clean'}"]
        lines += [f"  alive: {found}" for found in self.live]
        lines += [f"  {note}" for note in self.misuse]
        lines += [f"  not modelled: {name}, called {count} times" for name, count in self.absent.items()]
        if self.lost_bytes:
            lines.append(f"  device memory lost to destroyed green contexts: {self.lost_bytes} bytes")
        return "\n".join(lines)

    @classmethod
    def read(cls, data: Any) -> Ledger:
        """The ledger in `data`, the JSON answer of the driver."""
        return cls(
            live=tuple(
                LiveObject(**{**entry, "handle": int(entry["handle"], 16)}, stack=_stacks.get(entry["id"]))
                for entry in data["live"]
            ),
            misuse=tuple(Misuse(**{**entry, "handle": int(entry["handle"], 16)}) for entry in data["misuse"]),
            lost_bytes=data["lost_bytes"],
            green_contexts_made=data["green_contexts_made"],
            green_contexts_destroyed=data["green_contexts_destroyed"],
            absent=data["absent"],
        )


class Session:
    """The simulated machine that is the driver of this package during a session."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self._lib = library()
        self._kept: list[object] = []
        self._final: Ledger | None = None

    def __repr__(self) -> str:
        return f"<Session {self.spec} (simulated)>"

    def ledger(self) -> Ledger:
        """The live objects and the misuse so far; after the session, those at its end."""
        return self._final or Ledger.read(self._lib.answer("Ledger"))

    def calls(self, function: str | None = None) -> Any:
        """The number of calls of each driver function, or of one."""
        counts: dict[str, int] = self._lib.answer("Calls")
        return counts if function is None else counts.get(function, 0)

    def fail(
        self,
        function: str,
        *,
        code: str | int = "CUDA_ERROR_OUT_OF_MEMORY",
        nth: int | None = None,
        probability: float | None = None,
        seed: int = 0,
    ) -> None:
        """Inject a failure into calls of a driver function.

        function: the driver function, such as "cuGreenCtxCreate"; "*" for any.
        code: the CUresult, as a name or a number.
        nth: only the nth call from now. probability: each call by this chance, with `seed`. Without both, every call;
        ValueError with both.
        """
        if nth is not None and probability is not None:
            raise ValueError("pass nth or probability, not both")
        self._lib.fail(function, self._lib.error_code(code), nth=nth, probability=probability, seed=seed)

    def limit_contexts(self, count: int) -> None:
        """Fail creation with out of memory when ``count`` green contexts are alive (0: no limit)."""
        self._lib.limit_contexts(count)

    def clear_faults(self) -> None:
        """Remove all fault rules: every call succeeds again."""
        self._lib.clear_faults()

    def faults(self) -> Any:
        """The active fault rules, and how often each has fired."""
        return self._lib.answer("Faults")

    def memory(self, device: int = 0) -> dict[str, int]:
        """Bytes of a device: total, free, allocated, taken by live green contexts, lost to destroyed ones.

        ``resident`` is the host memory that stores the contents of device memory.
        """
        found: dict[str, int] = self._lib.answer("Memory")["devices"][device]
        return found

    def view(self, address: int, size: int) -> memoryview:
        """The bytes of device memory, for the functions of kernels; at the address itself the host can read nothing.

        address, size: of memory that a program has allocated or mapped, and not longer than that. ValueError otherwise.
        """
        return self._lib.view(address, size)

    def machine(self) -> Any:
        """The simulated machine: profile, name, driver version, number of devices."""
        return self._lib.answer("Machine")

    def time_ns(self) -> int:
        """Virtual nanoseconds since the machine started."""
        return self._lib.time_ns()

    def advance(self, ns: int) -> None:
        """Advance the virtual clock.

        ns: nanoseconds, on the clock of the machine.
        """
        self._lib.advance(ns)

    def kernel(
        self,
        name: str,
        function: Callable[[Block], None] | None = None,
        *,
        block_ns: int = 0,
        block_bytes: int = 0,
        tiles: int = 0,
        tile_ns: int = 0,
        tile_bytes: int = 0,
        throughput: float | None = None,
        registers: int | None = None,
        argument_sizes: Sequence[int] | None = None,
        reads: Sequence[int] | None = None,
        writes: Sequence[int] | None = None,
    ) -> None:
        """Set what a block of the kernel of this name costs, and a function that is called at the end of each block.

        ``block_ns`` is the time of a block alone on an SM if it waits for no memory, ``block_bytes`` what it moves to
        and from device memory; without times and bytes, 5 us are assumed. ``tiles`` makes the kernel persistent: its
        blocks stay on their SMs and take one tile after the other, each of ``tile_ns`` and ``tile_bytes``, until the
        tiles of the launch are gone; a block that comes later ends at once. ``throughput`` is the share of the SM's
        throughput that it uses: None means all of it from four warps on, 0 a kernel that only waits. ``registers`` is
        the number per thread: None means that of its image, or else 32. ``argument_sizes`` has the bytes of each
        argument, for images that do not contain them. The function runs on the thread that waits, and must not wait for
        the driver.

        ``reads`` and ``writes`` have the numbers of the arguments through which the kernel reads and writes memory:
        None means every one. What it writes is unknown if it has no function, if the function raises an
        exception, or if what it reads is unknown. After an exception, the next wait that covers the launch answers
        CUDA_ERROR_LAUNCH_FAILED.

        Raises ValueError unless the throughput is 0 to 1, if tiles have no time or no number, and for negative numbers
        of arguments.
        """
        if throughput is not None and not 0 <= throughput <= 1:
            raise ValueError(f"throughput is {throughput}; it must be 0 to 1")
        if (tiles > 0) != (tile_ns > 0) or (tile_bytes > 0 and tiles == 0):
            raise ValueError(
                f"tiles is {tiles}, tile_ns {tile_ns}, tile_bytes {tile_bytes}; pass both tiles and tile_ns, or neither"
            )
        if any(number < 0 for numbers in (reads, writes) for number in numbers or ()):
            raise ValueError(f"reads is {reads}, writes {writes}; the first argument has number 0")
        share = -1.0 if throughput is None else throughput
        cost = KernelCost(block_ns, block_bytes, share, registers or 0, tiles, tile_ns, tile_bytes)
        self._kept.append(self._lib.kernel(name, function, cost, argument_sizes))
        self._lib.kernel_access(name, reads, writes)

    def check(self) -> None:
        """Raise LedgerError unless nothing is alive and nothing was misused."""
        __tracebackhide__ = True
        ledger = self.ledger()
        if not ledger.is_clean:
            raise LedgerError(str(ledger))


def make_spec(profile: str = "h200", driver: str | None = None, devices: int = 1, **options: int) -> str:
    """The description of a machine in one line: ``h200@13.1,devices=2``.

    profile, driver, devices, options: as for session().
    """
    spec = profile if driver is None else f"{profile}@{driver}"
    return ",".join([spec, f"devices={devices}", *(f"{key}={value}" for key, value in options.items())])


@contextmanager
def session(
    profile: str = "h200",
    driver: str | None = None,
    devices: int = 1,
    *,
    check: bool = True,
    trace: bool = False,
    unknown: Policy = "error",
    **options: int,
) -> Iterator[Session]:
    """A fresh simulated machine, for programs that open ``library_path()``. If cuda_gctx is installed, it uses it too.

    profile: the card (see ``python -m cuda_software_driver profiles``). driver: the CUDA version, such as "13.1".
    devices: the number of cards. options: other keys of the machine's description (``connections``,
    ``max_contexts``, ``memory``, ``resident``).
    check: at the end, live objects and misuse raise LedgerError; an exception of the block takes precedence.
    trace: on the main thread, the ledger also reports the line that made each object; for objects of other
    threads it reports only the thread.
    unknown: the answer to a call that reads a result of a kernel that was not executed, or a time that includes a
    kernel of unknown duration. "error": CUDA_ERROR_NOT_SUPPORTED, and stderr names the kernel; "warn": stderr names the
    kernel once, and the call goes on; "ignore": the call goes on.
    """
    spec = make_spec(profile, driver, devices, **options) + (f",unknown={unknown}" if unknown != "error" else "")
    with _in_use(_machine(spec, trace)) as current:
        try:
            yield current
        finally:
            if any(found.kind != "primary context retain" for found in current.ledger().live):
                # Objects in reference cycles are garbage, not leaks.
                gc.collect()
    if check:
        current.check()


@contextmanager
def _machine(spec: str, trace: bool) -> Iterator[Session]:
    """A fresh machine of the library; the present machine is suspended meanwhile."""
    global _tracing
    library().push()
    try:
        # The devices that the caller asked for, whatever CUDA_VISIBLE_DEVICES leaves to programs.
        library().configure(f"{spec},visible=all")
        current = Session(spec)
        trace = trace and threading.current_thread() is threading.main_thread()
        if trace:
            _tracing += 1
            library().trace(_record)
        try:
            yield current
        finally:
            current._final = current.ledger()
            if trace:
                library().trace(None)
                _tracing -= 1
                if _tracing == 0:
                    _stacks.clear()
    finally:
        library().pop()


def _in_use(machine: AbstractContextManager[Session]) -> AbstractContextManager[Session]:
    """The machine as the driver of cuda_gctx, if that package is installed."""
    try:
        import cuda_gctx
    except ModuleNotFoundError as error:
        if error.name != "cuda_gctx":
            raise
        return machine
    _hidden.extend({os.path.abspath(folder) + os.sep for folder in cuda_gctx.__path__} - {*_hidden})
    used: AbstractContextManager[Session] = cuda_gctx.system.use_driver(library_path(), machine)
    return used
