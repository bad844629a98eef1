"""Descriptors between ranks while strangers connect, and what tells processes apart."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cuda_gctx.comm import _descriptors
from cuda_gctx.comm._backends import LocalBackend
from cuda_gctx.comm._descriptors import exchange_descriptors
from cuda_gctx.comm._memory import process_identity


def exchange(size: int, meanwhile: Any, *, before: bool = False) -> list[Any]:
    """What each rank receives, as the texts in its files.

    meanwhile: what the first rank does when all sockets are there, or before.
    """
    found: list[Any] = [None] * size

    class Backend:
        def __init__(self, local: LocalBackend) -> None:
            self.Get_rank, self.Get_size, self.bcast = local.Get_rank, local.Get_size, local.bcast
            self._local = local

        def barrier(self) -> None:
            if self.Get_rank() == 0 and not before:
                meanwhile()
            self._local.barrier()

    def work(local: LocalBackend) -> None:
        rank = local.Get_rank()
        if rank == 0 and before:
            meanwhile()
        own = os.memfd_create(f"rank {rank}")
        os.write(own, f"of rank {rank}".encode())
        try:
            received = exchange_descriptors(Backend(local), own, 20)
            found[rank] = {sender: os.pread(one, 64, 0).decode() for sender, one in received.items()}
            for one in received.values():
                os.close(one)
        except Exception as error:
            found[rank] = error
        finally:
            os.close(own)

    threads = [threading.Thread(target=work, args=(one,)) for one in LocalBackend.of(size, 20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return found


# In /proc/net/unix: the flags of a socket that listens, its inode and its abstract address.
LISTENING = re.compile(r" 00010000 \S+ \S+ +(\d+) @(cuda-gctx-[0-9a-f]{32}-[0-2])$", re.MULTILINE)


def addresses_of_ranks() -> list[str]:
    """Where the three ranks in this process listen: the addresses of other tests come and go meanwhile."""
    while True:
        own = set()
        for file in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):
                own.add(os.readlink(file))
        rows = LISTENING.findall(Path("/proc/net/unix").read_text())
        names = {name for inode, name in rows if f"socket:[{inode}]" in own}
        if len(names) == 3:
            return sorted(names)
        time.sleep(0.001)


def test_strangers_do_not_keep_ranks_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_descriptors, "MESSAGE_S", 0.05)
    kept: list[Any] = []

    def strangers() -> None:
        for number, name in enumerate(addresses_of_ranks()):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect("\0" + name)
            kept.append(connection)
            if number == 1:  # knows no secret
                file = os.memfd_create("stranger")
                socket.send_fds(connection, [b"a message of some length, from nobody"], [file])
                os.close(file)
            if number == 2:
                connection.close()

    assert exchange(3, strangers) == [
        {other: f"of rank {other}" for other in range(3) if other != rank} for rank in range(3)
    ]
    assert kept
    for one in kept:
        one.close()


CLONE_NEWNET = 0x40000000


def test_ranks_with_networks_of_their_own_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    apart: list[bool] = []

    def leave() -> None:  # of the first rank's thread alone
        apart.append(libc.unshare(CLONE_NEWNET) == 0)

    with_names = exchange(2, leave, before=True)
    if not all(apart):
        pytest.skip("needs the right to make a network namespace (root)")
    for rank, error in enumerate(with_names):
        assert isinstance(error, ConnectionError), error
        assert f"rank {1 - rank} did not accept the descriptor of rank {rank}: " in str(error)
        assert "need a folder that they share, in the environment variable CUDA_GCTX_SOCKETS" in str(error)
    monkeypatch.setenv("CUDA_GCTX_SOCKETS", str(tmp_path))
    assert exchange(2, leave, before=True) == [{1: "of rank 1"}, {0: "of rank 0"}]
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_forked_has_an_identity_of_its_own() -> None:
    assert process_identity() == process_identity()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, process_identity().encode())
        os._exit(0)
    os.waitpid(child, 0)
    of_child = os.read(reader, 64).decode()
    os.close(reader)
    os.close(writer)
    assert len(of_child) == len(process_identity())
    assert of_child != process_identity()
