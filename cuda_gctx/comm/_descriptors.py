"""File descriptors between processes of one host, over Unix sockets, with time limits."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time

from cuda_gctx.comm._backends import CommBackend

__all__ = ["exchange_descriptors"]


def _address(token: str, rank: int) -> str:
    # In the abstract namespace of Linux: no file is left behind, whatever happens.
    return f"\0cuda-gctx-{token}-{rank}"


def _demand_own_user(connection: socket.socket) -> None:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    if user != os.geteuid():
        raise PermissionError(f"a process of user {user} connected, where only ranks of user {os.geteuid()} may")


def exchange_descriptors(backend: CommBackend, descriptor: int, timeout_s: float) -> dict[int, int]:
    """Sends a descriptor to every other rank; returns theirs by rank, for the caller to close.

    Collective. TimeoutError if a rank does not send in time, ConnectionError if it has ended.
    """
    rank, size = backend.Get_rank(), backend.Get_size()
    token = backend.bcast(secrets.token_hex(16) if rank == 0 else None, 0)
    deadline = time.monotonic() + timeout_s
    received: dict[int, int] = {}

    def left() -> float:
        return max(deadline - time.monotonic(), 0.001)

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(_address(token, rank))
            listener.listen(size)
            backend.barrier()
            for peer in range(size):
                if peer == rank:
                    continue
                try:
                    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                        connection.settimeout(left())
                        connection.connect(_address(token, peer))
                        _demand_own_user(connection)
                        socket.send_fds(connection, [struct.pack("i", rank)], [descriptor])
                except ConnectionError as error:
                    raise ConnectionError(
                        f"rank {peer} does not take the descriptor of rank {rank}: {error}"
                    ) from error
            while len(received) < size - 1:
                listener.settimeout(left())
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(left())
                    _demand_own_user(connection)
                    message, descriptors, _, _ = socket.recv_fds(connection, struct.calcsize("i"), 1)
                    if len(message) != struct.calcsize("i") or len(descriptors) != 1:
                        for theirs in descriptors:
                            os.close(theirs)
                        raise ConnectionError("a rank closed its connection before it had sent its descriptor")
                    [sender] = struct.unpack("i", message)
                    received[sender] = descriptors[0]
    except BaseException as error:
        for theirs in received.values():
            os.close(theirs)
        if isinstance(error, TimeoutError):
            missing = sorted(set(range(size)) - {rank} - set(received))
            raise TimeoutError(f"no descriptor came from ranks {missing} in {timeout_s} s") from None
        raise
    return received
