"""Descriptors between ranks while strangers connect, and what tells processes apart."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
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

    threads = [
        threading.Thread(target=work, args=(one,), name=str(one.Get_rank())) for one in LocalBackend.of(size, 20)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return found


def all_received(size: int) -> list[Any]:
    return [{other: f"of rank {other}" for other in range(size) if other != rank} for rank in range(size)]


def test_strangers_do_not_keep_ranks_from_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections of the same user that know no secret, say nothing, or end, in random numbers and on random ranks."""
    monkeypatch.setattr(_descriptors, "MESSAGE_S", 0.05)
    monkeypatch.setenv("CUDA_GCTX_SOCKETS", str(tmp_path))
    for seed in range(5):
        choose, kept = random.Random(seed), []

        def strangers(choose: random.Random = choose, kept: list[Any] = kept) -> None:
            while len(sockets := list(tmp_path.glob("cuda-gctx-*/?"))) < 3:
                time.sleep(0.001)
            for _ in range(choose.randint(1, 6)):
                connection = socket.socket(socket.AF_UNIX)
                to = str(choose.choice(sockets))
                while connection.connect_ex(to) != 0:  # it is there, and does not listen yet
                    time.sleep(0.001)
                kept.append(connection)
                what = choose.randrange(3)
                if what == 1:  # knows no secret
                    file = os.memfd_create("stranger")
                    socket.send_fds(connection, [b"a message of some length, from nobody"], [file])
                    os.close(file)
                if what == 2:
                    connection.close()

        assert exchange(3, strangers) == all_received(3), seed
        assert kept
        for one in kept:
            one.close()
        assert list(tmp_path.iterdir()) == []


NOBODY = 65534


def test_another_user_cannot_fill_the_queues_of_ranks() -> None:
    """A process of another user connects to whatever listens, until it is told to stop."""
    if os.geteuid() != 0:
        pytest.skip("needs the right to become another user (root)")
    reader, writer = os.pipe()
    stranger = os.fork()
    if stranger == 0:
        try:
            os.close(writer)
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.set_blocking(reader, False)
            flood(reader)
        finally:
            os._exit(0)
    os.close(reader)
    try:
        for seed in range(6):
            pause = random.Random(seed).choice([0.0, 0.1, 0.2])
            assert exchange(2, lambda pause=pause: time.sleep(pause)) == all_received(2), seed
    finally:
        os.close(writer)
        os.waitpid(stranger, 0)


def flood(reader: int) -> None:
    """Connects to all sockets of ranks, by abstract names and by paths, until the pipe is closed."""
    held = []
    while True:
        with suppress(BlockingIOError):
            if os.read(reader, 1) == b"":
                return
        # In /proc/net/unix: the flags of a socket that listens, and its address.
        names = re.findall(r" 00010000 .* (\S*cuda-gctx-\S+)$", Path("/proc/net/unix").read_text(), re.MULTILINE)
        for name, _ in itertools.product(set(names), range(40)):
            one = socket.socket(socket.AF_UNIX)
            one.setblocking(False)
            try:
                one.connect("\0" + name[1:] if name.startswith("@") else name)
            except OSError:
                break
            held.append(one)


CLONE_NEWNET = 0x40000000


def test_ranks_with_networks_of_their_own_exchange_descriptors() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    apart: list[bool] = []

    def leave() -> None:  # of the first rank's thread alone
        apart.append(libc.unshare(CLONE_NEWNET) == 0)

    received = exchange(2, leave, before=True)
    if not all(apart):
        pytest.skip("needs the right to make a network namespace (root)")
    assert received == all_received(2)


@pytest.mark.parametrize("seed", range(3))
def test_a_folder_that_a_rank_does_not_see_is_an_error_that_names_the_variable(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = random.Random(seed).randrange(1, 3)
    look = os.lstat

    def lstat(path: Any, **options: Any) -> Any:
        if threading.current_thread().name == str(blind) and "cuda-gctx-" in str(path):
            raise FileNotFoundError(path)
        return look(path, **options)

    monkeypatch.setattr(os, "lstat", lstat)
    errors = exchange(3, lambda: None)
    assert isinstance(errors[blind], ConnectionError)
    for error in errors:
        assert "set the environment variable CUDA_GCTX_SOCKETS to a folder that all ranks of the host share" in str(
            error
        )


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
