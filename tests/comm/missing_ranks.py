"""Ranks that die or never come: the seconds until every other rank has its error, and whether the GPUs work afterwards.

    python tests/comm/missing_ranks.py WORLD RANK GPUS STORE

runs one rank, which prints its answer as a line of JSON; run() starts the ranks of every world. With 0 GPUs, the ranks
communicate on the CPU.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

from cuda_gctx import Device
from cuda_gctx.comm import CommFault, MixedCommHandler, MixedCommMode, MixedCommOp, _arguments, run_mixed_comm

RANKS = 3
MISSING = 1
TIMEOUT_S = 3.0
ROWS = 8
NOBODY = "nobody is missing"
# Worlds at a time: more processes than theirs have found too little memory on a card's host.
AT_ONCE = 5
IN_CALLS = ("dies before a call", "dies during a call", "dies between calls", "never calls")
ON_THE_HOST = ("never makes its handler", "never shuts down")


def worlds(gpus: int) -> list[str]:
    """What happens to one rank, by mode where kernels wait for it."""
    modes = ("ONE_EXCHANGE", "TWO_EXCHANGE") if gpus else ("GLOO",)
    return [*(f"{mode}, {what}" for what in IN_CALLS for mode in modes), *ON_THE_HOST]


class Rank:
    """This process as one rank of a world."""

    def __init__(self, rank: int, gpus: int, store: str) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.rank, self.gpus = torch, rank, gpus
        if gpus:
            torch.cuda.set_device(rank % gpus)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)

    @property
    def is_missing(self) -> bool:
        return self.rank == MISSING

    def handler(self, partition: Any) -> MixedCommHandler:
        place = self.rank, RANKS, self.rank, RANKS, 0, 1, None, None, None, None
        device = f"cuda:{self.rank % self.gpus}" if self.gpus else "cpu"
        return MixedCommHandler(*place, self.torch.bfloat16, device, partition=partition, timeout_s=TIMEOUT_S)

    def call(self, handler: MixedCommHandler, mode: MixedCommMode) -> None:
        """An all-reduce that has ended; raises what the handler reports."""
        x = self.torch.full((ROWS, 1024), self.rank + 1.0, dtype=self.torch.bfloat16, device=handler.device)
        out = run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x, None, mode)
        if self.gpus:
            self.torch.cuda.current_stream().synchronize()
        handler.check()
        assert bool((out == sum(range(1, RANKS + 1))).all()), "wrong sums"


def error_of(work: Callable[[], object]) -> dict[str, Any]:
    """What is raised, and after how many seconds. What a rank sent before it died arrives: a first call may end."""
    for _ in range(2):
        begin = time.monotonic()
        try:
            work()
        except RuntimeError as error:
            took = round(time.monotonic() - begin, 2)
            peer = error.peer_rank if isinstance(error, CommFault) else None
            return {"s": took, "error": str(error).partition(";")[0][:100], "peer": peer}
    raise AssertionError("no error was raised")


def stay_away() -> None:
    """Until the process is ended from outside."""
    while True:
        signal.pause()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def work_of(ranks: Rank, world: str, partition: Any) -> dict[str, Any]:
    """What one rank of a world does, and what it reports."""
    mode_name, _, what = world.rpartition(", ")
    if what == "never makes its handler":
        if ranks.is_missing:
            stay_away()
        _arguments.HOST_S = TIMEOUT_S  # the host waits longer by default
        return error_of(lambda: ranks.handler(partition))
    handler = ranks.handler(partition)
    if what == NOBODY:
        for mode in handler.valid_mode_list:
            ranks.call(handler, mode)
        handler.shutdown()
        return {"right": True}
    if what == "never shuts down":
        if ranks.is_missing:
            stay_away()
        _arguments.HOST_S = TIMEOUT_S
        begin = time.monotonic()
        handler.shutdown()
        return {"s": round(time.monotonic() - begin, 2), "error": "", "peer": None}
    mode = MixedCommMode[mode_name]
    if what == "dies between calls":
        ranks.call(handler, mode)
    if ranks.is_missing:
        if what == "never calls":
            stay_away()
        if what == "dies during a call":
            threading.Timer(0.5, die).start()
            ranks.call(handler, mode)
            stay_away()
        die()
    time.sleep(1)  # until the other one is gone
    found = error_of(lambda: ranks.call(handler, mode))
    if ranks.gpus:
        error_of(lambda: ranks.call(handler, mode))  # at once: the handler has failed
        handler.shutdown()
        handler.shutdown()
        assert float(ranks.torch.ones(1000, device=handler.device).sum()) == 1000.0
    return found


def start(world: str, gpus: int, store: str, limit: float) -> list[subprocess.Popen[str]]:
    """The ranks of a world."""
    program = ["timeout", "-s", "KILL", str(limit), sys.executable, __file__, world]
    return [
        subprocess.Popen([*program, str(rank), str(gpus), store], stdout=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]


def answers_of(ranks: Sequence[subprocess.Popen[str]], missing: Sequence[int]) -> list[dict[str, Any]]:
    """What the ranks that are not missing have reported. Those that are missing end here."""
    texts = [rank.communicate()[0] for number, rank in enumerate(ranks) if number not in missing]
    for number in missing:
        ranks[number].terminate()  # which timeout passes on
        ranks[number].communicate()
    return [json.loads(text.splitlines()[-1]) if text else {"problem": "no answer"} for text in texts]


def run(gpus: int, limit: float, skipped: Sequence[str], keep: Callable[[dict[str, Any]], None]) -> bool:
    """Worlds with a missing rank, some at a time, and then one without: whether all ranks end as they must."""
    right = True
    names = [name for name in worlds(gpus) if not any(word in name for word in skipped)]
    with TemporaryDirectory() as meetings:
        # Ranks meet through a file: a port that was free a moment ago may be taken.
        started: dict[str, list[subprocess.Popen[str]]] = {}
        for number, name in enumerate(names):
            if number % AT_ONCE == 0:
                started |= {one: start(one, gpus, f"{meetings}/{one}", limit) for one in names[number:][:AT_ONCE]}
            ranks = started[name]
            answers = answers_of(ranks, [MISSING])
            seconds = [answer.get("s") for answer in answers]
            right = right and all(one is not None for one in seconds)
            errors = [answer.get("error", answer.get("problem")) for answer in answers]
            row = {"missing": f"rank {MISSING}: {name}", "timeout_s": TIMEOUT_S, "error after s": seconds}
            keep(row | {"peers": [answer.get("peer") for answer in answers], "errors": errors})
        answers = answers_of(start(NOBODY, gpus, f"{meetings}/afterwards", limit), [])
        right = right and all(answer.get("right") for answer in answers)
        keep({"missing": NOBODY, "right": [answer.get("right", False) for answer in answers]})
    return right


def main() -> None:
    world, rank, gpus, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    ranks = Rank(rank, gpus, store)
    with ExitStack() as closing:
        partition = None
        if gpus:
            partition = closing.enter_context(Device(rank % gpus).partition(comm=16)).comm
            closing.enter_context(partition.torch())
        print(json.dumps(work_of(ranks, world, partition)), flush=True)
        # Without the others, there is nothing to be torn down together.
        os._exit(0)


if __name__ == "__main__":
    main()
