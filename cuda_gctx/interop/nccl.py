"""NCCL in a partition: groups of torch.distributed whose communicators are no larger than the partition.

Use a communicator in one partition only: collectives of the same communicator in two partitions deadlock.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from cuda_gctx._core.stream import Stream
from cuda_gctx.interop._frameworks import Target, own_stream
from cuda_gctx.interop.torch import load_torch, use

__all__ = ["nccl_options", "new_group"]

# The first version whose collectives run on the current stream, not on a separate one.
MINIMUM = "2.8"
# The default of NCCL on devices with clusters, from compute capability 9.0 on.
USUAL_CLUSTER = 4


def _load() -> Any:
    torch = load_torch(MINIMUM)
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        raise ImportError(f"this needs a build of torch with NCCL, and found {torch.__version__} without")
    return torch


def _fitting(torch: Any, stream: Stream) -> Any:
    sms = stream.resources.sm
    options = torch.distributed.ProcessGroupNCCL.Options()
    options.config.max_ctas = sms.sm_count
    if stream.device.compute_capability >= (9, 0):
        options.config.cga_cluster_size = min(USUAL_CLUSTER, sms.coscheduled_alignment)
    return options


def nccl_options(target: Target) -> Any:
    """ProcessGroupNCCL.Options for a partition, a context or a stream, for code that calls torch.distributed itself.

    At most one block per SM, and clusters that fit.
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
    """Make a torch.distributed group whose communicator fits a partition, a context or a stream, and connect it.

    Every rank calls it, as with torch.distributed.new_group, whose arguments follow the target in the same order; the
    backend is nccl. The current context of the thread is restored. Use the group in this partition only, inside
    ``with partition.torch():``, and without async_op: torch runs asynchronous collectives on a separate stream, on
    all SMs.
    """
    torch = _load()
    distributed = torch.distributed
    stream = own_stream(target)
    fitting = _fitting(torch, stream) if pg_options is None else pg_options
    # NCCL makes the primary context current and does not restore the previous one.
    with stream.device.context.current():
        group = distributed.new_group(ranks, timeout, backend or "nccl", fitting, *others, **options)
        if group is not None and group is not distributed.GroupMember.NON_GROUP_MEMBER:
            # The first collective makes the communicator and connects the ranks.
            with use(stream) as inner:
                distributed.all_reduce(torch.zeros(1, device=inner.device), group=group)
            stream.sync()
    return group
