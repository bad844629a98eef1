"""Partitions of a device: layouts, named partitions, pools, and verification."""

from cuda_gctx._core.memory import MemoryUse, ReleasedContexts
from cuda_gctx.partitions.graphs import GraphSet
from cuda_gctx.partitions.layout import BACKGROUND, Layout, PartitionSpec, Request
from cuda_gctx.partitions.partitions import (
    ClosedPartitionsError,
    Partition,
    Partitions,
    open_layout,
    partition,
    with_background,
)
from cuda_gctx.partitions.pool import PartitionPool
from cuda_gctx.partitions.split import PartitionSize, PlannedPartition, partition_sizes, plan
from cuda_gctx.partitions.verification import (
    ContextProof,
    IsolationError,
    KernelProof,
    SharedSMs,
    VerifyReport,
    verify,
)
from cuda_gctx.partitions.words import (
    LAYOUT_VARIABLE,
    REST,
    GivenLayout,
    given_layout,
    layout_of_text,
)

__all__ = [
    "BACKGROUND",
    "LAYOUT_VARIABLE",
    "REST",
    "ClosedPartitionsError",
    "ContextProof",
    "GivenLayout",
    "GraphSet",
    "IsolationError",
    "KernelProof",
    "Layout",
    "MemoryUse",
    "Partition",
    "PartitionPool",
    "PartitionSize",
    "PartitionSpec",
    "Partitions",
    "PlannedPartition",
    "ReleasedContexts",
    "Request",
    "SharedSMs",
    "VerifyReport",
    "given_layout",
    "layout_of_text",
    "open_layout",
    "partition",
    "partition_sizes",
    "plan",
    "verify",
    "with_background",
]
