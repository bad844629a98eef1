"""A stand-in for ``nvidia-cuda-mps-control``: the same commands, for tests of programs that start a daemon of MPS.

    python -m cuda_software_driver.mps_control -f    run a daemon in the foreground
    python -m cuda_software_driver.mps_control -d    run a daemon in the background
    echo COMMAND | python -m cuda_software_driver.mps_control

The folder of its socket is CUDA_MPS_PIPE_DIRECTORY, or /tmp/nvidia-mps. Simulated processes share no GPU: the daemon is
its own server, lists processes on the software driver as clients, and no command has an effect on them. With
CUDA_SOFTWARE_DRIVER_MPS=refuse, the daemon does not start.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["main"]

COMMANDS = (
    "get_server_list",
    "get_client_list",
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage",
    "ps",
    "terminate_client",
    "quit",
)
DRIVER = "libcuda_software_driver.so"


_percentage = 100.0


def _folder() -> Path:
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))


def _clients(folder: Path) -> list[str]:
    """The processes on the software driver whose environment names the daemon."""
    setting = f"CUDA_MPS_PIPE_DIRECTORY={folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if setting in (process / "environ").read_bytes().split(b"\0") and DRIVER in (process / "maps").read_text():
                found.append(process.name)
    return found


def _answer(line: str, folder: Path) -> str:
    global _percentage
    words = line.split() or [""]
    if words[0] == "get_server_list":
        return f"{os.getpid()}\n" if _clients(folder) else ""
    if words[0] == "get_default_active_thread_percentage":
        return f"{_percentage}\n"
    if words[0] == "set_default_active_thread_percentage":
        _percentage = float(words[1])
    if words[0] == "get_client_list":
        return "".join(f"{client}\n" for client in _clients(folder))
    return f"Unrecognized command: {words[0]}\n" if words[0] and words[0] not in COMMANDS else ""


def _serve(folder: Path) -> int:
    """Run the daemon until it is told to quit."""
    folder.mkdir(parents=True, exist_ok=True)
    file, log = folder / "nvidia-cuda-mps-control.pid", folder / "commands.log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "control"))
        listener.listen()
        file.write_text(str(os.getpid()))
        try:
            while True:
                connection, _ = listener.accept()
                with connection, connection.makefile("rw") as lines:
                    for line in lines:
                        with log.open("a") as written:
                            written.write(line)
                        if line.split()[:1] == ["quit"]:
                            return 0
                        lines.write(_answer(line, folder))
                        lines.flush()
        finally:
            for path in (folder / "control", file):
                path.unlink(missing_ok=True)


def _ask(folder: Path, commands: Sequence[str]) -> int:
    """Send commands to the daemon, and print its answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(folder / "control"))
        except OSError:
            print(f"Cannot find MPS control daemon process in {folder}", file=sys.stderr)
            return 1
        connection.sendall("".join(f"{command}\n" for command in commands).encode())
        connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError), connection.makefile() as lines:
            sys.stdout.write(lines.read())
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    folder = _folder()
    if not words:
        return _ask(folder, [line.strip() for line in sys.stdin if line.strip()])
    if words not in (["-f"], ["-d"]):
        print(f"{words[0]}: only -f and -d are simulated", file=sys.stderr)
        return 2
    if os.environ.get("CUDA_SOFTWARE_DRIVER_MPS") == "refuse":
        print("the daemon is refused (simulated)", file=sys.stderr)
        return 1
    if (folder / "control").exists():
        print("An instance of this daemon is already running", file=sys.stderr)
        return 1
    if words == ["-d"] and os.fork() != 0:
        return 0
    return _serve(folder)


if __name__ == "__main__":
    raise SystemExit(main())
