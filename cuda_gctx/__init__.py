"""Partition the SMs of a GPU into green contexts with their own streams, and verify where they run.

Importing this package loads no driver and no framework: each public name is imported from its module at first use.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from cuda_gctx._core.lazy import lazy_names

__version__ = "0.2.0"

# Python that is started in a clone imports this file instead of the installed package.
if find_spec("cuda_gctx._core.extension") is None:
    from cuda_gctx._core.clone import use_installed_package

    use_installed_package(__path__[0])

if TYPE_CHECKING:
    from cuda_gctx._core.default_streams import LEGACY_DEFAULT_STREAM as LEGACY_DEFAULT_STREAM
    from cuda_gctx._core.default_streams import PER_THREAD_DEFAULT_STREAM as PER_THREAD_DEFAULT_STREAM
    from cuda_gctx._core.default_streams import DefaultStream as DefaultStream
    from cuda_gctx._core.extension import CapturingError as CapturingError
    from cuda_gctx._core.extension import ClosedError as ClosedError
    from cuda_gctx._core.extension import Context as Context
    from cuda_gctx._core.extension import ContextCurrentError as ContextCurrentError
    from cuda_gctx._core.extension import ContextOptions as ContextOptions
    from cuda_gctx._core.extension import CUDAError as CUDAError
    from cuda_gctx._core.extension import CUDAWarning as CUDAWarning
    from cuda_gctx._core.extension import Device as Device
    from cuda_gctx._core.extension import DeviceResources as DeviceResources
    from cuda_gctx._core.extension import DriverNotFound as DriverNotFound
    from cuda_gctx._core.extension import Event as Event
    from cuda_gctx._core.extension import EventOptions as EventOptions
    from cuda_gctx._core.extension import FeatureNotSupported as FeatureNotSupported
    from cuda_gctx._core.extension import ForkedError as ForkedError
    from cuda_gctx._core.extension import Graph as Graph
    from cuda_gctx._core.extension import GraphExec as GraphExec
    from cuda_gctx._core.extension import ResourceOverlapError as ResourceOverlapError
    from cuda_gctx._core.extension import ResourceOverlapWarning as ResourceOverlapWarning
    from cuda_gctx._core.extension import SMResource as SMResource
    from cuda_gctx._core.extension import SMResourceOptions as SMResourceOptions
    from cuda_gctx._core.extension import SplitError as SplitError
    from cuda_gctx._core.extension import Stream as Stream
    from cuda_gctx._core.extension import StreamOptions as StreamOptions
    from cuda_gctx._core.extension import WorkqueueResource as WorkqueueResource
    from cuda_gctx._core.extension import WorkqueueResourceOptions as WorkqueueResourceOptions
    from cuda_gctx._core.extension import WorkqueueSharingScopeType as WorkqueueSharingScopeType
    from cuda_gctx._core.extension import system as system
    from cuda_gctx._core.include import get_include as get_include
    from cuda_gctx.measure.timeline import Timeline as Timeline
    from cuda_gctx.partitions import GraphSet as GraphSet
    from cuda_gctx.partitions import IsolationError as IsolationError
    from cuda_gctx.partitions import Layout as Layout
    from cuda_gctx.partitions import Partition as Partition
    from cuda_gctx.partitions import PartitionPool as PartitionPool
    from cuda_gctx.partitions import Partitions as Partitions
    from cuda_gctx.partitions import PartitionSpec as PartitionSpec
    from cuda_gctx.partitions import VerifyReport as VerifyReport
    from cuda_gctx.tracing.block import trace as trace

# The list above is for type checkers, this one for the interpreter; a test compares them.
_NAMES_OF_MODULE = {
    "cuda_gctx._core.extension": (
        "CUDAError",
        "CUDAWarning",
        "CapturingError",
        "ClosedError",
        "Context",
        "ContextCurrentError",
        "ContextOptions",
        "Device",
        "DeviceResources",
        "DriverNotFound",
        "Event",
        "EventOptions",
        "FeatureNotSupported",
        "ForkedError",
        "Graph",
        "GraphExec",
        "ResourceOverlapError",
        "ResourceOverlapWarning",
        "SMResource",
        "SMResourceOptions",
        "SplitError",
        "Stream",
        "StreamOptions",
        "WorkqueueResource",
        "WorkqueueResourceOptions",
        "WorkqueueSharingScopeType",
        "system",
    ),
    "cuda_gctx._core.default_streams": (
        "DefaultStream",
        "LEGACY_DEFAULT_STREAM",
        "PER_THREAD_DEFAULT_STREAM",
    ),
    "cuda_gctx._core.include": ("get_include",),
    "cuda_gctx.measure.timeline": ("Timeline",),
    "cuda_gctx.partitions": (
        "GraphSet",
        "IsolationError",
        "Layout",
        "Partition",
        "PartitionPool",
        "PartitionSpec",
        "Partitions",
        "VerifyReport",
    ),
    "cuda_gctx.tracing.block": ("trace",),
}

# Type checkers read only the list above: __getattr__ would allow any name.
if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_names(globals(), _NAMES_OF_MODULE)
