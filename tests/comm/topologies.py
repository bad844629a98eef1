"""Every topology of up to 8 ranks: nodes of equal size, each level split into tp and dp in all ways."""

from __future__ import annotations

from cuda_gctx.comm import ParallelInfo

MOST_RANKS = 8


def divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


TOPOLOGIES = [
    ParallelInfo.of(0, world, 0, world // nodes, 0, nodes, local_tp, None, inter_tp, None)
    for world in range(1, MOST_RANKS + 1)
    for nodes in divisors(world)
    for local_tp in divisors(world // nodes)
    for inter_tp in divisors(nodes)
]


def name_of(info: ParallelInfo) -> str:
    local = f"{info.local_tp_size}tp.{info.local_dp_size}dp"
    return (
        local
        if info.inter_size == 1
        else f"{info.inter_size}nodes-{info.inter_tp_size}tp.{info.inter_dp_size}dp-{local}"
    )
