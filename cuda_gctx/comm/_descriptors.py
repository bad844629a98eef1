"""File descriptors between processes of one host, over Unix sockets, with time limits."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

from cuda_gctx.comm._backends import CommBackend

__all__ = ["exchange_descriptors"]

# How many connections of each rank may wait to be taken: strangers connect as well.
WAITING = 8
# How long a rank that has connected may take to send: it does both in one go.
MESSAGE_S = 1.0


# A folder for the sockets, which containers share that have networks of their own.
FOLDER = "CUDA_GCTX_SOCKETS"


def _address(token: str, rank: int) -> str:
    folder = os.environ.get(FOLDER)
    # Otherwise in the abstract namespace of Linux, which belongs to a network: no file is left behind.
    return f"\0cuda-gctx-{token}-{rank}" if not folder else os.path.join(folder, f"cuda-gctx-{token[:16]}-{rank}")


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
    # The names of sockets can be read by everybody.
    token, secret = backend.bcast((secrets.token_hex(16), secrets.token_bytes(16)) if rank == 0 else None, 0)
    peers = set(range(size) if reached is None else reached) - {rank}
    deadline = time.monotonic() + timeout_s
    received: dict[int, int] = {}

    def left() -> float:
        return max(deadline - time.monotonic(), 0.001)

    own = _address(token, rank)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(own)
            listener.listen(WAITING * size)
            backend.barrier()
            for peer in sorted(peers):
                try:
                    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                        connection.settimeout(left())
                        connection.connect(_address(token, peer))
                        user = _user_of(connection)
                        if user != os.geteuid():
                            raise PermissionError(f"rank {peer} belongs to user {user}, not to {os.geteuid()}")
                        socket.send_fds(connection, [secret + struct.pack("i", rank)], [descriptor])
                except (ConnectionError, FileNotFoundError) as error:
                    raise ConnectionError(
                        f"rank {peer} did not accept the descriptor of rank {rank}: {error} (ranks in containers with "
                        f"networks of their own need a folder that they share, in the environment variable {FOLDER})"
                    ) from error
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
    except BaseException as error:
        for theirs in received.values():
            os.close(theirs)
        if isinstance(error, TimeoutError):
            missing = sorted(peers - set(received))
            raise TimeoutError(f"no descriptor arrived from ranks {missing} within {timeout_s} s") from None
        raise
    finally:
        if not own.startswith("\0"):
            with suppress(FileNotFoundError):
                os.unlink(own)
    return received
