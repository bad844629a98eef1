"""Ranks as threads on two and four GPUs."""

from __future__ import annotations

from typing import Any

from .common import (
    LARGEST,
    OF_FOUR,
    TWO_NODES,
    case,
)
from .faults import faults_of
from .operations import every_op
from .processes import compared_by_processes
from .sequences import back_to_back, graphs_of


@case(gpus=2)
def nodes_on_two_gpus() -> dict[str, Any]:
    """Two nodes of one rank, as threads and as processes; 2 x 2 and 2 x 4 with the ranks of a node on one GPU."""
    by_nodes = ("HIERARCHICAL",)
    two = [{"nodes": 2}, {"nodes": 2, "inter_dp_size": 2}]
    return {
        "2 ranks": every_op(2, two, 16, 16 << 20, gpus=2, modes=by_nodes),
        "4 ranks": every_op(4, OF_FOUR[3:], 16, 16 << 20, gpus=2, modes=by_nodes),
        "8 ranks": every_op(8, [TWO_NODES], 16, 4 << 20, gpus=2, modes=by_nodes),
        "processes": compared_by_processes(2, two, (1, 16, 100), ("bfloat16", "float16"), modes=by_nodes, nccl=False),
    }


@case(gpus=2)
def calls_on_two_gpus() -> dict[str, Any]:
    """Calls back to back, next to GEMMs on one of the GPUs too; graphs and a checkpoint; with two ranks a GPU."""
    return {
        "2 ranks": back_to_back(2, {}, 16, 10_000, with_gemms=False, gpus=2),
        "4 ranks": back_to_back(4, {"local_tp_size": 2}, 16, 2_000, with_gemms=False, gpus=2),
        "4 ranks of 8 SMs, next to GEMMs": back_to_back(4, {"local_tp_size": 2}, 8, 600, with_gemms=True, gpus=2),
        "graphs": graphs_of({"local_tp_size": 2}, gpus=2),
    }


@case(gpus=4)
def threads_on_four_gpus() -> dict[str, Any]:
    """Every topology of four ranks in both types, and of eight, two a GPU."""
    return {
        "4 ranks": every_op(4, OF_FOUR, 16, 16 << 20, gpus=4),
        "8 ranks": every_op(8, [{"local_tp_size": 4}], 16, 4 << 20, gpus=4),
    }


@case(gpus=4)
def faults_on_four_gpus() -> dict[str, Any]:
    return faults_of(4, 4)


@case(gpus=2)
def threads_on_two_gpus() -> dict[str, Any]:
    """Ranks as partitions of two GPUs, in one process: 1, 2 and 4 ranks a GPU."""
    two_nodes = {"nodes": 2, "local_tp_size": 2, "inter_dp_size": 2}
    return {
        "2 ranks": every_op(2, [{}, {"local_dp_size": 2}], 16, LARGEST, gpus=2),
        "4 ranks": every_op(4, [{"local_tp_size": 2}, two_nodes], 16, LARGEST, gpus=2),
        "8 ranks": every_op(8, [{"local_tp_size": 4}], 16, LARGEST, gpus=2),
    }
