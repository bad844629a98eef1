"""File descriptors between processes of one host, over Unix sockets, with time limits.

The sockets lie in a fresh folder that no other user can enter, so that nobody else can fill their queues.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from cuda_gctx.comm._backends import CommBackend, gather, on_all_ranks

__all__ = ["exchange_descriptors"]

# How long a rank that has connected may take to send: it does both in one go.
MESSAGE_S = 1.0
# The time for which a rank waits before it connects again to a rank whose queue is full.
AGAIN_S = 0.001
# Names the folder in which the ranks of a host make the folder of their sockets.
FOLDER = "CUDA_GCTX_SOCKETS"


def _new_folder() -> str:
    """Makes a folder that no other user can enter."""
    base = os.environ.get(FOLDER) or os.environ.get("XDG_RUNTIME_DIR")
    return tempfile.mkdtemp(prefix="cuda-gctx-", dir=base if base and os.path.isdir(base) else None)


def _demand_folder(folder: str, maker: int) -> None:
    words = f"set the environment variable {FOLDER} to a folder that all ranks of the host share"
    try:
        found = os.lstat(folder)
    except OSError as error:
        raise ConnectionError(f"the folder {folder} of rank {maker} is not there ({error}): {words}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.geteuid():
        raise PermissionError(
            f"the folder {folder} of rank {maker} belongs to user {found.st_uid} with mode {found.st_mode & 0o777:o}, "
            f"not to user {os.geteuid()} with mode 700: {words}"
        )


def _user_of(connection: socket.socket) -> int:
    """Who is at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)


def _received(connection: socket.socket, secret: bytes, seconds: float) -> tuple[int, int] | None:
    """A rank and its descriptor; None from a stranger, who knows no secret, or says nothing for a time."""
    if _user_of(connection) != os.geteuid():
        return None
    connection.settimeout(seconds)
    try:
        message, descriptors, _, _ = socket.recv_fds(connection, len(secret) + struct.calcsize("i"), 1)
    except OSError:
        return None
    if len(descriptors) == 1 and len(message) == len(secret) + struct.calcsize("i") and message.startswith(secret):
        [sender] = struct.unpack("i", message.removeprefix(secret))
        return sender, descriptors[0]
    for theirs in descriptors:
        os.close(theirs)
    return None


def exchange_descriptors(
    backend: CommBackend, descriptor: int, timeout_s: float, reached: Sequence[int] | None = None
) -> dict[int, int]:
    """Sends a descriptor to every other rank; returns theirs by rank, for the caller to close.

    reached: the ranks of this host; None: all of them.

    Collective. TimeoutError if a rank does not send in time, ConnectionError if it has ended.
    """
    rank, size = backend.Get_rank(), backend.Get_size()
    here = set(range(size) if reached is None else reached) | {rank}
    maker, peers = min(here), here - {rank}
    deadline = time.monotonic() + timeout_s
    received: dict[int, int] = {}
    problems: list[Exception] = []

    def left() -> float:
        return max(deadline - time.monotonic(), 0.001)

    def make() -> str:
        return _new_folder() if rank == maker else ""

    folders = gather(backend, on_all_ranks(backend, make, "a rank cannot make a folder for sockets"))
    folder, secret = folders[maker], backend.bcast(secrets.token_bytes(16) if rank == 0 else None, 0)
    own = os.path.join(folder, str(rank))
    try:
        on_all_ranks(backend, lambda: _demand_folder(folder, maker), "a rank does not see the folder for sockets")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(own)
            listener.listen(size)

            def accept() -> None:
                try:
                    while len(received) < len(peers):
                        listener.settimeout(left())
                        connection, _ = listener.accept()
                        with connection:
                            found = _received(connection, secret, min(left(), MESSAGE_S))
                        if found is None:
                            continue
                        sender, theirs = found
                        if sender not in peers or sender in received:
                            os.close(theirs)
                            raise ConnectionError(f"received an unexpected descriptor from rank {sender}")
                        received[sender] = theirs
                except Exception as error:
                    problems.append(error)

            # From the start, so that no rank waits for another one that sends.
            accepting = threading.Thread(target=accept, name="cuda_gctx descriptors", daemon=True)
            accepting.start()
            try:
                backend.barrier()
                for peer in sorted(peers):
                    _send(os.path.join(folder, str(peer)), peer, rank, secret, descriptor, left)
            except BaseException:
                listener.shutdown(socket.SHUT_RDWR)  # which ends the other thread
                raise
            finally:
                accepting.join()
            if problems:
                raise problems[0]
    except BaseException as error:
        for theirs in received.values():
            os.close(theirs)
        if isinstance(error, TimeoutError):
            missing = sorted(peers - set(received))
            raise TimeoutError(f"no descriptor arrived from ranks {missing} within {timeout_s} s") from None
        raise
    finally:
        with suppress(OSError):
            os.unlink(own)
        # The last rank of the host removes the folder.
        with suppress(OSError):
            os.rmdir(folder)
    return received


def _send(address: str, peer: int, rank: int, secret: bytes, descriptor: int, left: Callable[[], float]) -> None:
    """Sends a descriptor to another rank, and checks that this rank belongs to the same user."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(left())
        while True:
            try:
                connection.connect(address)
                break
            except BlockingIOError:
                if left() <= AGAIN_S:
                    raise TimeoutError from None
                time.sleep(AGAIN_S)
            except OSError as error:
                if isinstance(error, TimeoutError):
                    raise
                raise ConnectionError(f"rank {peer} did not accept the descriptor of rank {rank}: {error}") from error
        user = _user_of(connection)
        if user != os.geteuid():
            raise PermissionError(f"rank {peer} belongs to user {user}, not to {os.geteuid()}")
        try:
            socket.send_fds(connection, [secret + struct.pack("i", rank)], [descriptor])
        except ConnectionError as error:
            raise ConnectionError(f"rank {peer} did not accept the descriptor of rank {rank}: {error}") from error
