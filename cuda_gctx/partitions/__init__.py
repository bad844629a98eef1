"""Partitions of a device: layouts, named partitions, pools, the store of contexts, and verification."""

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
from cuda_gctx.partitions.store import ContextStore, MemoryUse, memory_use, store
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
    "ContextStore",
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
    "Request",
    "SharedSMs",
    "VerifyReport",
    "given_layout",
    "layout_of_text",
    "memory_use",
    "open_layout",
    "partition",
    "partition_sizes",
    "plan",
    "store",
    "verify",
    "with_background",
]
