"""Measure, decide and explain: which work to run concurrently, and in which partitions.

Importing this loads no driver and no framework: each public name is imported from its module at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_gctx._core.lazy import lazy_names

if TYPE_CHECKING:
    from cuda_gctx._core.extension import spin as spin
    from cuda_gctx.tune._causes import explain as explain
    from cuda_gctx.tune._objectives import TailLatency as TailLatency
    from cuda_gctx.tune._objectives import Throughput as Throughput
    from cuda_gctx.tune._overlap import overlap as overlap
    from cuda_gctx.tune._parts import PartError as PartError
    from cuda_gctx.tune._plans import Plan as Plan
    from cuda_gctx.tune._report import Report as Report

# The list above is for type checkers, this one is for the interpreter; a test holds them equal.
_NAMES_OF_MODULE = {
    "cuda_gctx._core.extension": ("spin",),
    "cuda_gctx.tune._causes": ("explain",),
    "cuda_gctx.tune._objectives": ("TailLatency", "Throughput"),
    "cuda_gctx.tune._overlap": ("overlap",),
    "cuda_gctx.tune._parts": ("PartError",),
    "cuda_gctx.tune._plans": ("Plan",),
    "cuda_gctx.tune._report": ("Report",),
}

# Type checkers, which would take __getattr__ as leave for any name, read the list above alone.
if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_names(globals(), _NAMES_OF_MODULE)
