"""NCCL groups that fit a partition: their options, what is current after they were made, and where their kernels run.

On the software driver torch.distributed is played by a stand-in; on a GPU each test is a program of its own, under a
time limit, because a communicator that hangs would take everything along.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_gctx import Device, SMResourceOptions
from cuda_gctx.interop.nccl import RanksDifferError, nccl_options, new_group

from ..raw import Raw

LIMIT_S = 100


class StandInDistributed(SimpleNamespace):
    """torch.distributed, which changes what is current as the real one does."""

    def __init__(self, torch: Any) -> None:
        super().__init__()
        self.torch = torch
        self.made: list[dict[str, Any]] = []
        self.reduced_on: list[int] = []
        self.GroupMember = SimpleNamespace(NON_GROUP_MEMBER=object())
        self.ProcessGroupNCCL = SimpleNamespace(Options=lambda: SimpleNamespace(config=SimpleNamespace()))
        self.is_member = True
        self.others: list[dict[str, str]] = []  # what further ranks say, in addition to what this one says
        self.destroyed: list[Any] = []
        torch.cuda.nccl = SimpleNamespace(version=lambda: (2, 27, 5))

    def is_available(self) -> bool:
        return True

    def is_nccl_available(self) -> bool:
        return True

    def new_group(
        self,
        ranks: Any = None,
        timeout: Any = None,
        backend: Any = None,
        pg_options: Any = None,
        use_local_synchronization: bool = False,
        group_desc: Any = None,
    ) -> Any:
        self.made.append({name: value for name, value in locals().items() if name != "self"})
        Raw().set_current(Device(0).context.handle)
        return "group" if self.is_member else self.GroupMember.NON_GROUP_MEMBER

    def get_world_size(self, group: Any) -> int:
        return 1 + len(self.others)

    def all_gather_object(self, into: list[Any], said: dict[str, str], group: Any) -> None:
        into[:] = [said, *({**said, **other} for other in self.others)]

    def destroy_process_group(self, group: Any) -> None:
        self.destroyed.append(group)

    def all_reduce(self, tensor: Any, group: Any) -> None:
        assert (tensor, group) == ("tensor", "group")
        self.reduced_on.append(self.torch.cuda.current_stream().cuda_stream)


@pytest.fixture
def distributed(torch: Any) -> StandInDistributed:
    stand_in = StandInDistributed(torch)
    torch.distributed = stand_in
    torch.zeros = lambda size, device: "tensor"
    return stand_in


@pytest.mark.sim_only
def test_a_communicator_has_no_more_blocks_than_the_partition_has_sms(
    distributed: StandInDistributed, dev: Device
) -> None:
    with dev.partition(16) as parts:
        for target in (parts[0], parts[0].context, parts[0].stream):
            config = nccl_options(target).config
            assert (config.max_ctas, config.cga_cluster_size) == (16, 4)
            assert not hasattr(config, "nvls_ctas")


@pytest.mark.sim_only
def test_a_communicator_has_the_blocks_and_the_policy_that_were_asked_for(
    distributed: StandInDistributed, dev: Device
) -> None:
    with dev.partition(16) as parts:
        # A torch whose NCCL has no policies has no such field.
        with pytest.raises(ImportError, match=r"NCCL 2\.27 or newer"):
            nccl_options(parts[0], cta_policy="zero")
        distributed.ProcessGroupNCCL.Options = lambda: SimpleNamespace(config=SimpleNamespace(cta_policy=-1))
        config = nccl_options(parts[0], ctas=4, cta_policy="zero").config
        assert (config.min_ctas, config.max_ctas, config.cta_policy) == (4, 4, 2)
        new_group(parts[0], cta_policy="efficiency")
        config = distributed.made[-1]["pg_options"].config
        assert (config.max_ctas, config.cta_policy) == (16, 1)
        assert not hasattr(config, "min_ctas")


@pytest.mark.sim_only
def test_blocks_and_policies_that_cannot_be_are_refused(distributed: StandInDistributed, dev: Device) -> None:
    with dev.partition(16) as parts:
        for count in (0, 17, True, 1.5):
            given: Any = count if type(count) is int else type(count).__name__
            with pytest.raises((ValueError, TypeError), match=f"ctas must be an int from 1 to 16, not {given}"):
                nccl_options(parts[0], ctas=count)  # type: ignore[arg-type]
        wrong: Any = "none"
        with pytest.raises(ValueError, match="one of default, efficiency, zero, not 'none'"):
            nccl_options(parts[0], cta_policy=wrong)
        with pytest.raises(ValueError, match="already sets"):
            new_group(parts[0], pg_options=nccl_options(parts[0]), ctas=4)
    assert distributed.made == []


@pytest.mark.sim_only
def test_clusters_fit_a_partition_of_sms_that_are_not_together(distributed: StandInDistributed, dev: Device) -> None:
    with dev.partition(SMResourceOptions([12], backfill=True)) as parts:
        config = nccl_options(parts[0]).config
        assert (config.max_ctas, config.cga_cluster_size) == (12, 2)


@pytest.mark.sim_only
def test_a_device_without_clusters_is_asked_for_none(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ..stand_in_torch import StandInTorch

    sim("a100", driver="13.0")
    torch = StandInTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    torch.distributed = StandInDistributed(torch)
    with Device(0).partition(16) as parts:
        config = nccl_options(parts[0]).config
        assert config.max_ctas == 16
        assert not hasattr(config, "cga_cluster_size")
    torch.close()


@pytest.mark.sim_only
def test_a_group_is_made_and_connected_in_the_partition_and_leaves_current_what_was(
    distributed: StandInDistributed, dev: Device
) -> None:
    with dev.partition(16) as parts:
        with parts[0].context.current():
            assert new_group(parts[0], [0], group_desc="words") == "group"
            assert parts[0].context.is_current
        [asked] = distributed.made
        assert (asked["ranks"], asked["backend"], asked["group_desc"]) == ([0], "nccl", "words")
        assert asked["pg_options"].config.max_ctas == 16
        assert distributed.reduced_on == [parts[0].stream.handle]


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"SMs": "24"}, "SMs: 16 on rank 0, 24 on rank 1"),
        ({"max_ctas": "8"}, "max_ctas: 16 on rank 0, 8 on rank 1"),
        ({"partition": "bulk"}, "partition: comm on rank 0, bulk on rank 1"),
        ({"order of the groups": "9999"}, r"order of the groups: \d+ on rank 0, 9999 on rank 1"),
        ({"NCCL": "2.28.9"}, r"NCCL: 2\.27\.5 on rank 0, 2\.28\.9 on rank 1"),
        ({"NCCL_MAX_CTAS": "4"}, "NCCL_MAX_CTAS: not set on rank 0, 4 on rank 1"),
        ({"error": "ValueError: too many"}, "cannot continue: rank 1: ValueError: too many"),
    ],
)
def test_a_group_whose_ranks_differ_is_destroyed_on_all(
    distributed: StandInDistributed, dev: Device, monkeypatch: pytest.MonkeyPatch, other: dict[str, str], reason: str
) -> None:
    monkeypatch.delenv("NCCL_MAX_CTAS", raising=False)
    distributed.others = [other]
    with dev.partition(comm=16) as parts, parts.comm.context.current():
        with pytest.raises(RanksDifferError, match=reason):
            new_group(parts.comm)
        assert parts.comm.context.is_current
    assert distributed.destroyed == ["group"]
    assert distributed.reduced_on == []


@pytest.mark.sim_only
def test_a_rank_whose_options_cannot_be_still_meets_the_others(distributed: StandInDistributed, dev: Device) -> None:
    with dev.partition(comm=16) as parts:
        with pytest.raises(ValueError, match="ctas must be an int from 1 to 16"):
            new_group(parts.comm, ctas=17)
        assert len(distributed.made) == len(distributed.destroyed) == 1
        distributed.is_member = False
        with pytest.raises(ValueError, match="ctas must be an int from 1 to 16"):
            new_group(parts.comm, ctas=17)


@pytest.mark.sim_only
def test_options_of_ones_own_are_taken(distributed: StandInDistributed, dev: Device) -> None:
    with dev.partition(16) as parts:
        mine = nccl_options(parts[0])
        new_group(parts[0], pg_options=mine)
        assert distributed.made[0]["pg_options"] is mine


@pytest.mark.sim_only
def test_arguments_come_in_the_order_that_torch_has(distributed: StandInDistributed, dev: Device) -> None:
    limit = timedelta(seconds=5)
    with dev.partition(16) as parts:
        new_group(parts[0], [0], limit, None, None, True, "words")
    [asked] = distributed.made
    assert asked.pop("pg_options").config.max_ctas == 16
    assert list(asked.values()) == [[0], limit, "nccl", True, "words"]


@pytest.mark.sim_only
def test_a_rank_that_is_not_a_member_takes_no_part(distributed: StandInDistributed, dev: Device) -> None:
    distributed.is_member = False
    with dev.partition(16) as parts:
        assert new_group(parts[0], [1]) is distributed.GroupMember.NON_GROUP_MEMBER
    assert distributed.reduced_on == []


@pytest.mark.sim_only
def test_a_torch_without_nccl_is_named(
    distributed: StandInDistributed, dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "is_nccl_available", lambda: False, raising=False)
    with (
        dev.partition(16) as parts,
        pytest.raises(ImportError, match=r"torch built with NCCL; 2\.11\.0 is built without it"),
    ):
        new_group(parts[0])


@pytest.mark.sim_only
def test_a_torch_whose_collectives_leave_the_partition_is_refused(
    distributed: StandInDistributed, torch: Any, dev: Device
) -> None:
    torch.__version__ = "2.7.1"
    with dev.partition(16) as parts, pytest.raises(ImportError, match=r"needs torch 2\.8 or newer, but found 2\.7\.1"):
        new_group(parts[0])


# ---- on a GPU

START = """
import sys
import torch
import torch.distributed as dist
from cuda_gctx import Device
from cuda_gctx.tune import spin
from cuda_gctx.interop.nccl import new_group
from cuda_gctx.measure.loop import TIMED, seconds_between

rank, world, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.cuda.set_device(rank)
dev = Device(rank)
where = torch.device("cuda", rank)
parts = dev.partition(comm=16)
"""

ALONE = """
with parts.comm.context.current():
    # What NCCL changes when everything begins is put back in the same way.
    with dev.context.current():
        dist.init_process_group("nccl", init_method=meeting, rank=rank, world_size=world, device_id=where)
    assert parts.comm.context.is_current
    group = new_group(parts.comm)
    assert parts.comm.context.is_current
config = group._get_backend(where).options.config
print("max_ctas", config.max_ctas, "cga_cluster_size", config.cga_cluster_size)
x = torch.arange(1024, device=where, dtype=torch.float32)
with parts.comm.torch():
    dist.all_reduce(x, group=group)
    y = x * 2
assert y.eq(2 * torch.arange(1024, device=where)).all()
with_policy = new_group(parts.comm, ctas=4, cta_policy="zero")
config = with_policy._get_backend(where).options.config
assert (config.min_ctas, config.max_ctas, config.cta_policy) == (4, 4, 2)
with parts.comm.torch():
    dist.all_reduce(x, group=with_policy)
torch.cuda.synchronize()
dist.destroy_process_group()
del group, with_policy
print("done")
"""

TOGETHER = """
SPIN_S = 0.3
dist.init_process_group("nccl", init_method=meeting, rank=rank, world_size=world, device_id=where)
group = new_group(parts.comm)
config = group._get_backend(where).options.config
assert config.max_ctas == parts.comm.sm_count, config.max_ctas
x = torch.full((1 << 22,), float(rank + 1), device=where)
with parts.comm.torch():
    dist.all_reduce(x, group=group)
assert x.eq(sum(range(1, world + 1))).all()

def seconds_before(part):
    # How long before a kernel that fills all SMs of a part an all_reduce in comm ends.
    side = part.stream_pool(1)[0]
    parts.comm.stream.sync()
    dist.barrier()
    torch.cuda.synchronize()
    spin(side, 2 * part.sm_count, int(SPIN_S * 1e9))
    spun = side.record(options=TIMED)
    with parts.comm.torch():
        dist.all_reduce(x, group=group)
    reduced = parts.comm.stream.record(options=TIMED)
    spun.sync()
    reduced.sync()
    return seconds_between(reduced, spun)

seconds_before(parts.background)
beside_rest, beside_itself = seconds_before(parts.background), seconds_before(parts.comm)
print(f"rank {rank}: {beside_rest:.4f} s before the rest is idle, {beside_itself:.4f} s before comm itself is")
# It needs SMs of comm, and no others.
assert beside_rest > 0 > beside_itself
torch.cuda.synchronize()
dist.destroy_process_group()
del group
print("done")
"""


def run_ranks(program: str, world: int, meeting: Path) -> list[str]:
    """Runs a program once for each rank; all are killed if one does not end."""
    environment = {**os.environ, "NCCL_NVLS_ENABLE": "0"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", START + program, str(rank), str(world), f"file://{meeting}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(world)
    ]
    outputs = []
    try:
        for rank in ranks:
            outputs.append(rank.communicate(timeout=LIMIT_S)[0])
    except subprocess.TimeoutExpired:
        for rank in ranks:
            rank.kill()
        raise AssertionError(f"hangs: {[rank.communicate()[0] for rank in ranks]}") from None
    for rank, words in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, words
        assert words.strip().endswith("done"), words
        print(words)
    return outputs


@pytest.fixture
def nccl() -> Any:
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    if not (torch.cuda.is_available() and torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        pytest.skip("this torch has no NCCL")
    return torch


@pytest.mark.gpu_only
@pytest.mark.filterwarnings("default")
def test_a_group_of_one_leaves_current_what_was_and_shows_its_options(nccl: Any, tmp_path: Path) -> None:
    [words] = run_ranks(ALONE, 1, tmp_path / "meeting")
    assert "max_ctas 16 cga_cluster_size" in words


@pytest.mark.gpu_only
@pytest.mark.filterwarnings("default")
@pytest.mark.alone
def test_two_gpus_reduce_inside_their_partitions(nccl: Any, tmp_path: Path) -> None:
    if nccl.cuda.device_count() < 2:
        pytest.skip("needs two GPUs, and there is one here")
    run_ranks(TOGETHER, 2, tmp_path / "meeting")
