"""Agreement of ranks: checks that all processes of torch.distributed open the same partitions.

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

# The first version with the functions of torch.distributed that this module uses.
MINIMUM = "2.4"

# The environment variables that set the number of blocks of NCCL.
HINTS = ("NCCL_CGA_CLUSTER_SIZE", "NCCL_CTA_POLICY", "NCCL_MAX_CTAS", "NCCL_MIN_CTAS", "NCCL_NVLS_ENABLE")

Statement = dict[str, str]
# The name of the only term in the statement of a rank that fails.
ERROR = "error"


class RanksDifferError(RuntimeError):
    """The ranks of a group would open or use different partitions. The message names the ranks that differ."""


def _nccl(torch: Any) -> str:
    return ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else "none"


def _statement(torch: Any, own: Callable[[], Mapping[str, object]]) -> Statement:
    """Return the statement of a rank: the terms of `own`, the driver, NCCL and the environment."""
    return {
        **{name: str(value) for name, value in own().items()},
        "driver": ".".join(map(str, system.driver_version)),
        "NCCL": _nccl(torch),
        **{name: os.environ.get(name, "not set") for name in HINTS},
    }


def _values_of(statements: Sequence[Statement], term: str) -> str:
    """The different values of a term, each with its ranks."""
    ranks: dict[str, list[int]] = {}
    for rank, statement in enumerate(statements):
        ranks.setdefault(statement[term], []).append(rank)
    return ", ".join(
        f"{value} on rank{'s' if len(numbers) > 1 else ''} {ranges(numbers)}" for value, numbers in ranks.items()
    )


def compare(torch: Any, group: Any, own: Callable[[], Mapping[str, object]]) -> None:
    """Compare the statements of the ranks of a group: all ranks return, or all raise the same error.

    torch: the module. group: the ranks that call this; None for all. own: returns further terms of this rank, by name;
    an exception from it becomes an error of all ranks. Raises RanksDifferError.
    """
    failure: Exception | None = None
    try:
        statement = _statement(torch, own)
    except Exception as error:  # raised after the exchange, because the other ranks wait for this one
        statement, failure = {ERROR: f"{type(error).__name__}: {error}"}, error
    statements: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(statements, statement, group=group)
    failed = {rank: other[ERROR] for rank, other in enumerate(statements) if ERROR in other}
    if failure is not None and len(failed) == len(statements) and len(set(failed.values())) == 1:
        raise failure
    if failed:
        reasons = "; ".join(f"rank {rank}: {error}" for rank, error in failed.items())
        raise RanksDifferError(f"some ranks of this group cannot continue: {reasons}")
    different = [name for name in statement if len({other[name] for other in statements}) > 1]
    if different:
        reasons = "; ".join(f"{name}: {_values_of(statements, name)}" for name in different)
        raise RanksDifferError(
            f"the ranks of this group differ ({reasons}): use the same layout, driver, libraries and settings on all "
            "of them"
        )


def _terms_of(device: Device | None, opened: Layout | Partitions) -> dict[str, object]:
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
    compare(torch, group, lambda: _terms_of(device, layout))
