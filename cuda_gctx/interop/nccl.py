"""NCCL in a partition: groups of torch.distributed whose communicators are no larger than the partition.

Use a communicator in one partition only: collectives of one communicator in two partitions deadlock.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from itertools import count
from typing import Any, Literal

from cuda_gctx._core.extension import Stream, as_int
from cuda_gctx.interop._frameworks import Target, own_stream
from cuda_gctx.interop.agreement import RanksDifferError, agree, compare
from cuda_gctx.interop.launch_order import launch_order
from cuda_gctx.interop.torch import load_torch, use

__all__ = ["CTAPolicy", "RanksDifferError", "agree", "launch_order", "nccl_options", "new_group"]

CTAPolicy = Literal["default", "efficiency", "zero"]

# The first version whose collectives run on the current stream, not on a separate one.
MINIMUM = "2.8"
# The values of ncclConfig_t for the policies.
_POLICIES = {"default": 0, "efficiency": 1, "zero": 2}
# The default cluster size of NCCL on devices with clusters (compute capability 9.0 and newer).
USUAL_CLUSTER = 4
# The options of a group that its ranks compare.
COMPARED = ("min_ctas", "max_ctas", "cga_cluster_size", "cta_policy")

# Numbers the groups of this process in the order of their creation.
_numbers = count(1)


def _load() -> Any:
    torch = load_torch(MINIMUM)
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        raise ImportError(f"this needs torch built with NCCL; {torch.__version__} is built without it")
    return torch


def _fitting(torch: Any, stream: Stream, ctas: int | None, cta_policy: CTAPolicy | None) -> Any:
    sms = stream.resources.sm
    if ctas is not None:
        ctas = as_int("ctas", ctas, 1, sms.sm_count)
    if cta_policy is not None and cta_policy not in _POLICIES:
        raise ValueError(f"cta_policy must be one of {', '.join(_POLICIES)}, not {cta_policy!r}")
    options = torch.distributed.ProcessGroupNCCL.Options()
    options.config.max_ctas = ctas or sms.sm_count
    if ctas is not None:
        options.config.min_ctas = ctas
    if cta_policy is not None:
        if not hasattr(options.config, "cta_policy"):
            raise ImportError(f"cta_policy needs torch built with NCCL 2.27 or newer; {torch.__version__} is not")
        options.config.cta_policy = _POLICIES[cta_policy]
    if stream.device.compute_capability >= (9, 0):
        options.config.cga_cluster_size = min(USUAL_CLUSTER, sms.coscheduled_alignment)
    return options


def nccl_options(target: Target, *, ctas: int | None = None, cta_policy: CTAPolicy | None = None) -> Any:
    """ProcessGroupNCCL.Options for a partition, a context or a stream, for code that calls torch.distributed itself.

    The options allow at most one block per SM, and clusters that fit. target: the partition, context or stream. ctas:
    exactly this many blocks. cta_policy: "efficiency" for the fewest blocks that sustain the bandwidth, "zero" for copy
    engines instead of SMs where NCCL can use them (collectives without arithmetic, on symmetric memory).
    """
    return _fitting(_load(), own_stream(target), ctas, cta_policy)


def _terms(target: Target, stream: Stream, number: int, options: Any) -> Mapping[str, object]:
    """The values that all ranks of a group must have in common, by name."""
    config = getattr(options, "config", None)
    return {
        "order of the groups": number,
        "partition": getattr(target, "name", None),
        "SMs": stream.resources.sm.sm_count,
        **{name: getattr(config, name, None) for name in COMPARED},
    }


def new_group(
    target: Target,
    ranks: list[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    *others: Any,
    ctas: int | None = None,
    cta_policy: CTAPolicy | None = None,
    **options: Any,
) -> Any:
    """Create a torch.distributed group whose communicator fits a partition, a context or a stream, and connect it.

    target: the partition, context or stream. ranks, timeout, backend, pg_options, others, options: as for
    torch.distributed.new_group, in the same order; the backend is nccl.

    Every rank must call it, and create its groups in the same order. The ranks of the group compare their partitions,
    options, driver, NCCL and settings as agree() does. If these differ, all ranks destroy the group and raise the same
    RanksDifferError.
    The function restores the current context of the thread. Use the group in this partition only, inside
    ``with partition.torch():``, and without async_op: torch runs asynchronous collectives on a separate stream, on
    all SMs. ctas, cta_policy: as in nccl_options(); ValueError together with pg_options.

    Returns the group.
    """
    torch = _load()
    if pg_options is not None and (ctas, cta_policy) != (None, None):
        raise ValueError("pg_options already sets what ctas and cta_policy set: pass one or the other")
    distributed = torch.distributed
    stream = own_stream(target)
    number = next(_numbers)
    failure: Exception | None = None
    try:
        fitting = _fitting(torch, stream, ctas, cta_policy) if pg_options is None else pg_options
    except Exception as error:  # raised in compare(), because the other ranks wait for this one
        fitting, failure = None, error

    def terms() -> Mapping[str, object]:
        if failure is not None:
            raise failure
        return _terms(target, stream, number, fitting)

    # NCCL makes the primary context current and does not restore the previous one.
    with stream.device.context.current():
        group = distributed.new_group(ranks, timeout, backend or "nccl", fitting, *others, **options)
        if group is not None and group is not distributed.GroupMember.NON_GROUP_MEMBER:
            # The first collectives create the communicator and connect the ranks.
            try:
                with use(stream) as inner:
                    compare(torch, group, terms)
                    distributed.all_reduce(torch.zeros(1, device=inner.device), group=group)
                stream.sync()
            except Exception:
                distributed.destroy_process_group(group)
                raise
        elif failure is not None:
            raise failure
    return group
