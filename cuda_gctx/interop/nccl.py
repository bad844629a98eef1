"""NCCL in a partition: groups of torch.distributed whose communicators are no larger than the partition.

A communicator belongs to one partition: collectives of the same one from two partitions wait for each other for ever.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from cuda_gctx._core.stream import Stream
from cuda_gctx.interop._frameworks import Target, own_stream
from cuda_gctx.interop.torch import load_torch, use

__all__ = ["nccl_options", "new_group"]

# The first one whose collectives run on the current stream, and not on one of their own.
MINIMUM = "2.8"
# What NCCL takes by itself where there are clusters, from compute capability 9.0 on.
USUAL_CLUSTER = 4


def _load() -> Any:
    torch = load_torch(MINIMUM)
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        raise ImportError(f"this needs a torch that is built with NCCL, and found {torch.__version__} without")
    return torch


def _fitting(torch: Any, stream: Stream) -> Any:
    sms = stream.resources.sm
    options = torch.distributed.ProcessGroupNCCL.Options()
    options.config.max_ctas = sms.sm_count
    if stream.device.compute_capability >= (9, 0):
        options.config.cga_cluster_size = min(USUAL_CLUSTER, sms.coscheduled_alignment)
    return options


def nccl_options(target: Target) -> Any:
    """ProcessGroupNCCL.Options for a partition, a context or a stream: for those who call torch.distributed themselves.

    At most one block for each SM, and clusters that fit.
    """
    return _fitting(_load(), own_stream(target))


def new_group(
    target: Target,
    ranks: list[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    *others: Any,
    **options: Any,
) -> Any:
    """A torch.distributed group whose communicator fits a partition, a context or a stream, and is connected already.

    Every rank calls it, as with torch.distributed.new_group, whose arguments follow the target in the same order; the
    backend is nccl. What is current on the thread stays so. Use the group on this partition alone, inside
    ``with partition.torch():``, and without async_op: torch runs asynchronous collectives on a stream of its own, on
    all SMs.
    """
    torch = _load()
    distributed = torch.distributed
    stream = own_stream(target)
    fitting = _fitting(torch, stream) if pg_options is None else pg_options
    # NCCL makes the primary context current and leaves it so.
    with stream.device.context.current():
        group = distributed.new_group(ranks, timeout, backend or "nccl", fitting, *others, **options)
        if group is not None and group is not distributed.GroupMember.NON_GROUP_MEMBER:
            # The first collective makes the communicator and connects the ranks.
            with use(stream) as inner:
                distributed.all_reduce(torch.zeros(1, device=inner.device), group=group)
            stream.sync()
    return group
