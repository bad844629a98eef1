"""The reference layer: processes over gloo and threads of one process, on the CPU, against the exact values."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from . import missing_ranks
from .topologies import MOST_RANKS

PROGRAMS = Path(__file__).with_name("rank_programs.py")
# For ranks that hang; generous, because the machine may be busy with other things.
LIMIT_S = 900
SIMULATED = {"CUDA_GCTX_DRIVER": "sim:h200@13.0"}

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs torch (make .venv/torch, where its CPU build can be had)"
)


class Ranks:
    """Runs programs of ranks: a process that has torch loaded forks them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, PROGRAMS, "serve", str(LIMIT_S)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(
        self, name: str, size: int, folder: Path, processes: int | None = None, killed: Sequence[int] = ()
    ) -> list[Any]:
        """What each rank printed. Fails with the output of all ranks, stacks included, if one fails or hangs.

        killed: the ranks that kill themselves.
        """
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        numbers = range(size if processes is None else processes)
        print(json.dumps([name, len(numbers), size, str(folder)]), file=requests, flush=True)
        codes = json.loads(answers.readline())
        output = "\n".join(f"rank {rank}:\n{(folder / f'{rank}.err').read_text()}" for rank in numbers)
        assert codes == [-signal.SIGKILL if rank in killed else 0 for rank in numbers], output
        printed = [(folder / f"{rank}.out").read_text() for rank in numbers if rank not in killed]
        return [json.loads(text.splitlines()[-1]) for text in printed if text]

    def close(self) -> None:
        self._process.communicate()  # it ends with its input


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    yield made
    made.close()


@needs_torch
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_every_operation_over_gloo_gives_the_exact_bits(size: int, ranks: Ranks, tmp_path: Path) -> None:
    compared = ranks.run("every_topology_over_gloo", size, tmp_path)
    assert compared[0] > 10
    assert len(set(compared)) == 1


@needs_torch
@pytest.mark.parametrize(
    "name", ["every_topology_in_threads", pytest.param("every_topology_and_type_in_threads", marks=pytest.mark.long)]
)
def test_every_operation_in_threads_gives_the_exact_bits(name: str, ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(name, MOST_RANKS, tmp_path, processes=1)[0] > 100


@needs_torch
@pytest.mark.parametrize("size", [4, pytest.param(MOST_RANKS, marks=pytest.mark.long)])
def test_blocks_of_any_size_give_the_exact_bits_through_padded_tensors(size: int, ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run("any_size", size, tmp_path, processes=1)[0] > 100


@needs_torch
def test_each_rank_gathers_and_scatters_a_number_of_rows_of_its_own(ranks: Ranks, tmp_path: Path) -> None:
    size = 3
    wanted = {
        "too few": f"counts must have a number for each of {size} ranks, not 1 numbers",
        "other rows": "x_in must have shape [2, 3] and dtype torch.float16, not [1, 3]",
        "negative": f"counts[{size - 1}] must be",
        "output": f"x_out must have shape [{2 * size}, 3] and dtype torch.float16, not [2, 3]",
        "scattered": f"x_in must have shape [{2 * size}, 3] and dtype torch.float16, not [2, 3]",
        "type": "x_out must have shape [2, 3] and dtype torch.float16, not [2, 3] and torch.float32",
        "ranks differ": "all ranks must pass inputs of the same shape",
        "tp": "ALLGATHER is not valid for tp_size=",
    }
    for compared, found in ranks.run("rows_of_their_own", size, tmp_path):
        assert compared == 4 * 8 * 2 * 2
        assert found.keys() == wanted.keys()
        for what, words in wanted.items():
            assert words in found[what], what


@needs_torch
def test_a_rank_may_change_its_tensor_once_its_call_has_returned(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run("an_input_that_changes_at_once", 2, tmp_path, processes=1) == [[3.0, 3.0]]


@needs_torch
def test_misuse_is_refused_by_name_on_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    wanted = {
        "no group": "call torch.distributed.init_process_group() first, or pass a comm_backend",
        "dtype": "torch.float32, torch.float8_e4m3fn, not torch.float64",
        "dtypes": "dtype must be the same on all ranks; found rank 0: torch.float16, rank 1: torch.bfloat16",
        "topology": "local_tp_size must be the same on all ranks; found rank 0: 2, rank 1: 1",
        "grid": "omit partition and grid_size",
        "uneven": "all ranks must pass inputs of the same shape; found rank 0: [4, 8], rank 1: [5, 8]",
        "other dtype": "x_in must have dtype torch.float16, not torch.float32",
        "not contiguous": "x_in must be contiguous",
        "wrong output": "x_out must have shape [4, 8], not [2, 8]",
        "op": "ALLGATHER is not valid for tp_size=2 and dp_size=1; valid: ALLREDUCE",
        "mode": "mode ONE_EXCHANGE is not valid for this handler; valid: GLOO",
        "uneven nodes": "all ranks must pass inputs of the same shape; found rank 0: [4, 8], rank 1: [5, 8]",
        "different modes": "found rank 0: ALLREDUCE HIERARCHICAL of torch.float16, rank 1: ALLREDUCE GLOO of",
        "different roots": "found rank 0: BROADCAST GLOO of torch.float16 from rank 0, rank 1: BROADCAST GLOO of "
        "torch.float16 from rank 1",
        "no root": "BROADCAST needs a root: pass root=",
        "no such root": "root must be an int from 0 to 1, not 2",
        "a root": "ALLREDUCE has no root: omit root=0",
        "broadcast by nodes": "mode HIERARCHICAL does not compute BROADCAST; modes that do: GLOO",
        "no nodes": "mode HIERARCHICAL is not valid for this handler; valid: GLOO",
        "nvshmem": "NVSHMEM cannot be initialised: the handler is on the CPU",
        "mapping": "a handler on the CPU cannot map tensors",
        "released": "call checkpoint_restore() first",
        "closed": "has been shut down",
    }
    for rank, found in enumerate(ranks.run("refusals", 2, tmp_path)):
        assert f"is rank {rank} of 2, and the handler is rank 0 of 3" in found.pop("place")
        assert f"is rank {rank} of 3, and the handler is rank {rank} of 2" in found.pop("restored elsewhere")
        assert found.keys() == wanted.keys()
        for what, words in wanted.items():
            assert words in found[what], what


@needs_torch
def test_groups_of_a_job_have_a_handler_each(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run("groups_of_a_job", 4, tmp_path) == [[3]] * 4


@needs_torch
def test_pieces_go_between_nodes_through_torch(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run("exchanges_of_nodes", 4, tmp_path) == [5 * 3 + 3] * 4


@needs_torch
def test_torch_compile_keeps_calls_in_one_graph(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run("compiled", 2, tmp_path) == [[2]] * 2


@needs_torch
def test_torch_compile_keeps_calls_whose_outputs_a_rank_does_not_use(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run("compiled_unused", 2, tmp_path) == [[4]] * 2


@needs_torch
def test_calls_that_are_known_are_those_of_the_same_tensors_but_for_their_addresses(
    ranks: Ranks, tmp_path: Path
) -> None:
    assert ranks.run("known_calls", 1, tmp_path) == [11]


@needs_torch
def test_every_rank_follows_one_tuning_table(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.run("autotune", 2, tmp_path)
    assert found[0]["table"] == found[1]["table"]
    # Of every operation two sizes: one that the topology cannot divide is rounded down.
    cases = [(one["op"], one["bytes"]) for one in json.loads(found[0]["table"])["cases"]]
    ops = ("ALLGATHER", "REDUCESCATTER", "ALLTOALL", "BROADCAST")
    assert cases == [(op, size) for op in ops for size in (1024, 4096)]
    # Nodes do not compute all of them.
    assert found[0]["by nodes"] == {op: ["GLOO", *(["HIERARCHICAL"] if op in ops[:2] else [])] for op in ops}
    for answers in found:
        assert (answers["before"], answers["after"]) == ("GLOO", "GLOO")
        assert "the tuning table must be the same on all ranks" in answers["different"]
        assert "message_bytes must contain a size of 64 or more" in answers["sizes"]


@needs_torch
def test_a_rank_that_stays_away_keeps_the_others_for_a_limited_time(ranks: Ranks, tmp_path: Path) -> None:
    warning, after_shutdown, alone = ranks.run("absences", 2, tmp_path)[0]
    assert "was shut down, but keeps its memory mapped" in warning
    assert "has been shut down" in after_shutdown
    assert "imed out" in alone or "timeout" in alone, alone


@needs_torch
def test_a_rank_that_dies_during_a_call_is_an_error_on_every_other_rank(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.run("dying", 3, tmp_path, killed=[1])
    assert [type(answer["s"]) for answer in found] == [float, float]
    assert all(answer["error"] for answer in found)


@needs_torch
@pytest.mark.long
def test_a_rank_that_dies_is_an_error_on_every_other_rank_and_the_next_world_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in SIMULATED.items():
        monkeypatch.setenv(name, value)
    rows: list[dict[str, Any]] = []
    assert missing_ranks.run(0, LIMIT_S, ("before", "between", "never"), rows.append)
    died, afterwards = rows
    assert died["missing"] == "rank 1: GLOO, dies during a call"
    assert [type(seconds) for seconds in died["error after s"]] == [float, float]
    assert all(died["errors"])
    assert afterwards["right"] == [True] * 3


def test_ranks_that_hang_end_with_the_stacks_of_all_threads(tmp_path: Path) -> None:
    limit = 0.25
    while not (tmp_path / "hangs").exists():  # on a busy machine, it has not begun to in so short a time
        limit *= 2
        program = [sys.executable, PROGRAMS, "hanging", "0", "1", tmp_path, str(limit)]
        done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode != 0
    for words in ("Timeout", "in wait_in_a_thread", "in hanging"):
        assert words in done.stderr


def test_importing_loads_no_framework(tmp_path: Path) -> None:
    program = [sys.executable, PROGRAMS, "importing", "0", "1", tmp_path, str(LIMIT_S)]
    assert json.loads(subprocess.run(program, check=True, stdout=subprocess.PIPE).stdout) == []


@needs_torch
def test_descriptors_reach_every_other_rank_and_one_that_stays_away_is_an_error_in_time(
    ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run("descriptors", 3, tmp_path)
    for rank, answers in enumerate(found):
        assert answers["texts"] == [f"of rank {peer}" for peer in range(3) if peer != rank]
        assert answers["left open"] == 0
    *others, away = (answers["outcome"] for answers in found)
    assert away == "stayed away"
    # It has closed its socket before others connect, or after; on a busy machine the others may miss each other too.
    known = re.compile(
        r"TimeoutError: no descriptor arrived from ranks \[(\d, )?\d\] within 0.5 s"
        r"|ConnectionError: rank \d did not accept the descriptor of rank \d: "
        r"|ConnectionError: a rank closed its connection before it had sent its descriptor"
    )
    assert all(known.match(outcome) for outcome in others), others
