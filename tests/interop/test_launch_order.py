"""The order of collectives is compared on ranks that are processes, with torch's own gloo."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_gctx.interop.launch_order import Launch, first_difference, launch_of, launch_order

from ..common import refusal

pytestmark = pytest.mark.sim_only

# The ranks are forks of a process that has loaded torch.
PROGRAM = """
import gc, os, sys, torch, torch.distributed as dist
from cuda_gctx.interop.nccl import launch_order

def start(rank, groups, step):
    # An all-reduce of a group, or a transfer to or from the other rank.
    if step in groups:
        return dist.all_reduce(torch.ones(4), group=groups[step], async_op=True)
    return {"s": dist.isend, "r": dist.irecv}[step](torch.ones(4), 1 - rank, group=groups["a"])

def run(rank, folder, *orders):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    groups = {"a": dist.new_group(), "b": dist.new_group()}
    for steps in orders:
        try:
            with launch_order(timeout=60):
                # Ends in any order, because gloo runs both groups at once.
                for work in [start(rank, groups, one) for one in steps.strip("-")]:
                    work.wait()
            yield "equal"
        except RuntimeError as error:
            yield f"{type(error).__name__} {error}"
    dist.destroy_process_group()

folder, *lasts = sys.argv[1:]
gc.freeze()
for rank, last in enumerate(lasts):
    if os.fork() == 0:
        with open(f"{folder}/{rank}", "w") as file:
            print(*run(rank, folder, "aba", *last.split(",")), sep="\\n", file=file)
        break
else:
    for _ in lasts:
        os.wait()
os._exit(0)  # the end of an interpreter that has torch takes longer than all this
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed here")
def test_ranks_that_start_collectives_in_different_orders_raise_the_same_error(tmp_path: Path) -> None:
    steps = ["aab,sa,srb,-", "aba,ra,srb,-"]
    subprocess.run([sys.executable, "-c", PROGRAM, tmp_path, *steps], check=True, timeout=240)
    one, other = ((tmp_path / rank).read_text().splitlines() for rank in "01")
    assert one == other
    equal, different, sent, exchanged, nothing = one
    assert equal == sent == exchanged == "equal"
    assert nothing.startswith("RuntimeError launch_order() has recorded no collective on any rank")
    assert different.startswith("RanksDifferError the ranks start collectives in different orders: ")
    assert re.search(
        r": collective 2 is allreduce of group (\d+) on rank 0 and allreduce of group (?!\1)\d+ on rank 1$", different
    )


def test_ranks_are_compared_in_the_groups_that_both_belong_to() -> None:
    both, first, second = (0, 1, 2), (0, 1), (1, 2)
    a, b, c = Launch("a", both, "allreduce"), Launch("b", first, "allreduce"), Launch("c", second, "broadcast")
    assert first_difference([[a, b], [a, c, b], [a, c]]) == ""
    found = first_difference([[a, b], [a, c, b], [c, a]])
    assert found == "collective 1 is allreduce of group a on rank 1 and broadcast of group c on rank 2"
    assert first_difference([[a, b], [a], [a]]) == "collective 2 is allreduce of group b on rank 0 and none on rank 1"


def test_what_one_rank_sends_the_other_receives() -> None:
    ranks = (4, 5, 6)  # of a group, of which rank 5 is number 1
    args: tuple[Any, ...] = ([], "group")
    sent = launch_of("g", ranks, "send", (*args, 1), own=4)
    received = launch_of("g", ranks, "recv", (*args, 0), own=5)
    back = launch_of("g", ranks, "send", (*args, 0), own=5)
    assert sent == received
    assert sent.ranks == (4, 5)
    nobody: list[Launch] = []
    everybody = [nobody] * 4
    assert first_difference([*everybody, [sent], [received], []]) == ""
    assert first_difference([*everybody, [sent], [back], []]) == (
        "collective 1 is a transfer from rank 4 to 5 of group g on rank 4 and a transfer from rank 5 to 4 of group g "
        "on rank 5"
    )
    # A batch starts its transfers at once.
    gotten = launch_of("g", ranks, "recv", (*args, 1), own=4)
    assert first_difference([*everybody, [sent, gotten], [back, received], []]) == ""
    reduced = Launch("g", ranks, "allreduce")
    found = first_difference([*everybody, [sent, reduced], [reduced, received], [reduced]])
    assert found.startswith("collective 1 is a transfer from rank 4 to 5 of group g on rank 4 and allreduce of group g")
    # Whom a rank receives from is not known, if it receives from any one.
    anyone = launch_of("g", ranks, "recv_any_source", args, own=5)
    assert first_difference([*everybody, [sent, reduced], [anyone, reduced], [reduced]]) == ""


def test_it_needs_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = SimpleNamespace(__version__="2.11.0", distributed=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert "init_process_group" in str(refusal(RuntimeError, lambda: launch_order().__enter__()))
    refusal(ValueError, lambda: launch_order(timeout=-1).__enter__())
