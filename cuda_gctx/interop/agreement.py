"""Agreement of ranks: check that all processes of torch.distributed open the same partitions, before one uses them.

Needs torch.distributed with any backend, also without a CUDA build of torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cuda_gctx._core.extension import Device, system
from cuda_gctx._core.text import ranges
from cuda_gctx.interop._frameworks import load
from cuda_gctx.partitions import Layout, Partitions, plan, with_background

__all__ = ["RanksDifferError", "agree", "compare"]

# The first version with a torch.distributed that is used here.
MINIMUM = "2.4"

# What the environment tells NCCL about its blocks.
HINTS = ("NCCL_CGA_CLUSTER_SIZE", "NCCL_CTA_POLICY", "NCCL_MAX_CTAS", "NCCL_MIN_CTAS", "NCCL_NVLS_ENABLE")

Statement = dict[str, str]
# The only term of a rank that fails.
ERROR = "error"


class RanksDifferError(RuntimeError):
    """The ranks of a group would open or use different partitions. The message names the ranks that differ."""


def _nccl(torch: Any) -> str:
    return ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else "none"


def _statement(torch: Any, own: Callable[[], Mapping[str, object]]) -> Statement:
    """The statement of a rank: its own terms, and the terms of all ranks."""
    return {
        **{name: str(value) for name, value in own().items()},
        "driver": ".".join(map(str, system.driver_version)),
        "NCCL": _nccl(torch),
        **{name: os.environ.get(name, "not set") for name in HINTS},
    }


def _said_by(statements: Sequence[Statement], term: str) -> str:
    """The different values of a term, each with its ranks."""
    ranks: dict[str, list[int]] = {}
    for rank, statement in enumerate(statements):
        ranks.setdefault(statement[term], []).append(rank)
    return ", ".join(
        f"{value} on rank{'s' if len(those) > 1 else ''} {ranges(those)}" for value, those in ranks.items()
    )


def compare(torch: Any, group: Any, own: Callable[[], Mapping[str, object]]) -> None:
    """Compare the statements of the ranks of a group: all ranks return, or all raise the same error.

    torch: the module. group: the ranks that call this; None for all. own: returns further terms of this rank, by name;
    an exception from it becomes an error of all ranks. Raises RanksDifferError.
    """
    failure: Exception | None = None
    try:
        said = _statement(torch, own)
    except Exception as error:  # the other ranks wait for this one, and have to know
        said, failure = {ERROR: f"{type(error).__name__}: {error}"}, error
    statements: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(statements, said, group=group)
    failed = {rank: statement[ERROR] for rank, statement in enumerate(statements) if ERROR in statement}
    if failure is not None and len(failed) == len(statements) and len(set(failed.values())) == 1:
        raise failure
    if failed:
        reasons = "; ".join(f"rank {rank}: {error}" for rank, error in failed.items())
        raise RanksDifferError(f"some ranks of this group cannot continue: {reasons}")
    different = [name for name in said if len({statement[name] for statement in statements}) > 1]
    if different:
        reasons = "; ".join(f"{name}: {_said_by(statements, name)}" for name in different)
        raise RanksDifferError(
            f"the ranks of this group differ ({reasons}): use the same layout, driver, libraries and settings on all "
            "of them"
        )


def _of_layout(device: Device | None, opened: Layout | Partitions) -> dict[str, object]:
    if isinstance(opened, Layout):
        parts: Iterable[Any] = plan(device or Device(), opened)
        layout = opened
    else:
        parts, layout = with_background(opened), opened.layout
    return {"request": layout, "numbers of SMs": ", ".join(f"{part.name} {part.sm_count}" for part in parts)}


def agree(layout: Layout | Partitions, group: Any = None, *, device: Device | None = None) -> None:
    """Compare the partitions of all ranks of a torch.distributed group: all return, or all raise the same error.

    layout: the layout that this rank opens, or its open partitions. group: the group whose ranks compare; None for all
    ranks. device: the device of this rank for a layout, by default the current one.

    The ranks compare the request, the resulting numbers of SMs, the driver, NCCL, and the variables that set NCCL's
    number of blocks. Every rank of the group must call agree(). It does not open partitions.

    Raises RanksDifferError, which names the ranks that differ, or those on which the layout does not fit. If the layout
    fits on no rank for the same reason, raises the error of opening it. RuntimeError before init_process_group().
    """
    if not isinstance(layout, (Layout, Partitions)):
        raise TypeError(f"layout must be a Layout or Partitions, not {type(layout).__name__}")
    torch = load("torch", "torch", MINIMUM)
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise RuntimeError("agree() compares the ranks of torch.distributed: call init_process_group() first")
    compare(torch, group, lambda: _of_layout(device, layout))
