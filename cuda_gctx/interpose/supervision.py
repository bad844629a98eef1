"""Programs in partitions: their start, their reports, their end, and the table of what they did."""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from cuda_gctx._core.text import table
from cuda_gctx.interpose import LIBRARY, InterposeError, folder_for_sockets
from cuda_gctx.partitions.words import PART_VARIABLE

__all__ = ["FORWARDED", "Program", "Supervision"]

REPORTS_VARIABLE = "CUDA_GCTX_REPORTS"
STRICT_VARIABLE = "CUDA_GCTX_STRICT"
VERIFY_VARIABLE = "CUDA_GCTX_VERIFY"
# Programs have this time to end by themselves.
GRACE_S = 10.0
POLL_S = 0.5
# The server of MPS is a descendant where "share" has started the daemon. It opens the driver for its clients.
MPS_SERVER = "nvidia-cuda-mps-server"
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


@dataclass
class Process:
    """The reports of one process."""

    pid: int
    program: str = "?"
    part: str | None = None
    sms: dict[int, int] = field(default_factory=dict)  # by device
    streams: int | None = None
    contexts: int | None = None
    verified: str | None = None
    escapes: list[str] = field(default_factory=list)


@dataclass
class Program:
    """A command in a partition."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def status(self) -> int | None:
        """The exit status as in a shell, or None while the program runs."""
        code = self.process.poll() if self.process is not None else None
        return code if code is None or code >= 0 else 128 - code


class Supervision:
    """Starts programs, and waits for them. Use it as a context."""

    def __init__(self, real: str, *, strict: bool = False, verify: bool = False) -> None:
        self._verify = verify
        self._real = os.path.realpath(real)
        self._strict = strict
        self._programs: list[Program] = []
        self._processes: dict[int, Process] = {}
        self._looked_at: set[tuple[int, int]] = set()
        self._signals: list[int] = []
        self._own_groups = False
        self._others: set[int] = set()  # children of this process that are no programs

    def __enter__(self) -> Supervision:
        self._folder = tempfile.TemporaryDirectory(prefix="cuda-gctx-", dir=folder_for_sockets())
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(self._reports_path)
        self._others = set(self._descendants())
        # Children of children that end stay below this process, where the poll finds them.
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        return self

    def __exit__(self, *_: object) -> None:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)
        self._socket.close()
        self._folder.cleanup()

    @property
    def _reports_path(self) -> str:
        return os.path.join(self._folder.name, "reports")

    def start(self, program: Program, *, own_group: bool = False, stdin: int | None = None) -> None:
        """Start a program. In a group of its own, it ends with this process, whatever ends this process."""

        def prepare() -> None:
            if own_group:
                os.setpgid(0, 0)
                prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            for number in FORWARDED:
                signal.signal(number, signal.SIG_DFL)

        environment = {**program.environment, REPORTS_VARIABLE: self._reports_path}
        if self._strict:
            environment[STRICT_VARIABLE] = "1"
        if self._verify:
            environment[VERIFY_VARIABLE] = "1"
        self._own_groups = self._own_groups or own_group
        sys.stdout.flush()
        program.process = subprocess.Popen(
            list(program.command), env=environment, preexec_fn=prepare, stdin=stdin, close_fds=True
        )
        self._programs.append(program)

    # ---- waiting

    @contextmanager
    def _signal_handlers(self) -> Iterator[int]:
        """Note signals, and wake the loop up: yields the descriptor that becomes readable."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("programs are supervised on the main thread")
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

        def note(number: int, _: FrameType | None) -> None:
            if number != signal.SIGCHLD:
                self._signals.append(number)

        former = {number: signal.signal(number, note) for number in (*FORWARDED, signal.SIGCHLD)}
        wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in former.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)

    def wait(self, until: str | None = None, before_kill: Callable[[Sequence[int]], None] | None = None) -> int:
        """Wait for all programs; returns the exit status of the first that failed, or 128 and the number of a signal.

        until: the end of this program ends the others. before_kill: called with the processes that are left, before
        they are killed.
        """
        status: int | None = None
        ending_since: float | None = None
        looked = 0.0
        with self._signal_handlers() as woken:
            while True:
                ended = {program.name: program.status for program in self._programs if program.status is not None}
                failed = next((code for code in ended.values() if code), None)
                if status is None and failed is not None and ending_since is None:
                    status = failed
                self._receive()
                if len(ended) == len(self._programs):
                    break
                self._reap()
                now = time.monotonic()
                if ending_since is None and (status is not None or until in ended):
                    ending_since = now
                    self._send(signal.SIGTERM)
                while self._signals:
                    number = self._signals.pop(0)
                    # A terminal sends its signals to the programs of this process's group itself.
                    if self._own_groups or number != signal.SIGINT:
                        self._send(number)
                    if self._own_groups:
                        status = status or 128 + number
                        ending_since = ending_since or now
                if self._own_groups and ending_since is not None and now - ending_since > GRACE_S:
                    if before_kill is not None:
                        before_kill(self._descendants())
                    self._send(signal.SIGKILL)
                    self._send_to_strays(signal.SIGKILL)
                if now - looked > POLL_S:
                    looked = now
                    self._look_for_escapes()
                select.select([self._socket.fileno(), woken], [], [], POLL_S)
                with suppress(BlockingIOError):
                    while os.read(woken, 512):
                        pass
        if self._own_groups:  # the programs may have left processes behind
            self._send(signal.SIGTERM)
            self._send_to_strays(signal.SIGTERM)
        self._receive()
        if self._strict and not status and self.escapes:
            return 1
        return status or 0

    def _reap(self) -> None:
        """Take the ended processes that programs have left to this process, which would stay as zombies."""
        known = {program.process.pid for program in self._programs if program.process is not None}
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in known:
                os.waitpid(ended.si_pid, 0)

    def end(self) -> None:
        """End the programs that run, because another one could not be started."""
        self._send(signal.SIGTERM)
        for program in self._programs:
            if program.process is not None:
                try:
                    program.process.wait(GRACE_S)
                except subprocess.TimeoutExpired:
                    self._send(signal.SIGKILL)
                    program.process.wait()

    def _send(self, number: int) -> None:
        for program in self._programs:
            process = program.process
            if process is not None and (self._own_groups or process.poll() is None):
                with suppress(ProcessLookupError, PermissionError):
                    if self._own_groups:
                        os.killpg(process.pid, number)
                    else:
                        process.send_signal(number)

    def _send_to_strays(self, number: int) -> None:
        """Send a signal to processes that have left the groups of their programs, as servers and launchers do."""
        groups = {program.process.pid for program in self._programs if program.process is not None}
        for pid in self._descendants():
            with suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) not in groups:
                    os.kill(pid, number)

    # ---- reports

    def _process(self, pid: int) -> Process:
        return self._processes.setdefault(pid, Process(pid))

    def _receive(self) -> None:
        while True:
            try:
                text = self._socket.recv(4096)
            except BlockingIOError:
                return
            with suppress(ValueError, KeyError, TypeError):  # any program of this user can write to the socket
                self._note(json.loads(text.decode(errors="replace")))

    def _note(self, report: Mapping[str, Any]) -> None:
        process = self._process(int(report["pid"]))
        process.program = str(report["program"])
        if "part" in report:
            process.part = str(report["part"])
        event = report["event"]
        if event == "part":
            process.sms[int(report["device"])] = int(report["sms"])
        elif event == "escape":
            process.escapes.append(str(report["what"]))
        elif event == "verified":
            process.verified = f"{int(report['streams'])} streams, {int(report['sms'])} SMs"
        elif event == "end":
            process.streams = int(report["streams"])
            process.contexts = int(report["contexts"])

    # ---- processes without the library

    def _descendants(self) -> list[int]:
        """The processes that the programs have started. A daemon that ran before and its servers are none of them."""
        children: dict[int, list[int]] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with suppress(OSError, IndexError, ValueError):
                    # The name of a program may contain spaces and brackets.
                    parent = int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
                    children.setdefault(parent, []).append(int(entry))
        found: list[int] = []
        waiting = [os.getpid()]
        while waiting:
            below = [pid for pid in children.get(waiting.pop(), []) if pid not in self._others]
            waiting += below
            found += below
        return found

    def _look_for_escapes(self) -> None:
        for pid in self._descendants():
            with suppress(OSError):
                key = (pid, os.stat(f"/proc/{pid}/exe").st_ino)  # an exec makes another program of a process
                if key in self._looked_at:
                    continue
                maps = Path("/proc", str(pid), "maps").read_text(errors="replace")
                # The name comes after the maps: an exec in between would give the maps another name.
                if self._real not in maps or os.path.basename(os.readlink(f"/proc/{pid}/exe")) == MPS_SERVER:
                    continue
                self._looked_at.add(key)
                variables = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
                if LIBRARY not in maps:
                    process = self._process(pid)
                    process.program = Path("/proc", str(pid), "comm").read_text().strip()
                    process.escapes.append("opened the driver without the library")
                elif not any(variable.startswith(f"{PART_VARIABLE}=".encode()) for variable in variables):
                    self._process(pid).escapes.append(f"opened the driver without {PART_VARIABLE}")

    @property
    def escapes(self) -> list[str]:
        """Work that left its partition, one line for each kind of each process."""
        return [
            f"process {process.pid} ({process.program}): {escape}{f' ({count} times)' if count > 1 else ''}"
            for process in self._processes.values()
            for escape, count in Counter(process.escapes).items()
        ]

    def __str__(self) -> str:
        """The table of all processes that opened the driver, and the programs without one."""
        rows = [
            (
                f"{process.pid} {process.program}",
                process.part,
                ", ".join(map(str, process.sms.values())) or None,
                process.streams,
                process.contexts,
                *([process.verified] if self._verify else []),
                len(process.escapes),
            )
            for process in self._processes.values()
        ]
        proof = ["verified"] if self._verify else []
        columns = ("process", "partition", "SMs", "streams", "contexts", *proof, "escapes")
        parts = {process.part for process in self._processes.values()}
        unused = [
            f"no process of {program.name} opened the driver" for program in self._programs if program.name not in parts
        ]
        return "\n".join([*([table(columns, rows)] if rows else []), *self.escapes, *unused])


def demand_command(command: Sequence[str]) -> None:
    """Raise InterposeError if a program has a bit that makes the dynamic linker ignore the environment."""
    found = shutil.which(command[0])
    if found is not None and os.stat(found).st_mode & (stat.S_ISUID | stat.S_ISGID):
        raise InterposeError(f"{found} runs as another user: the dynamic linker loads no library for it")
