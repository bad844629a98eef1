"""Collective communication that runs inside a partition.

Importing this loads no driver and no framework: the first use of a public name imports its module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_gctx.extending import lazy_names

if TYPE_CHECKING:
    from cuda_gctx.comm._backends import CommBackend as CommBackend
    from cuda_gctx.comm._faults import CommFault as CommFault
    from cuda_gctx.comm._handler import MixedCommHandler as MixedCommHandler
    from cuda_gctx.comm._handler import run_mixed_comm as run_mixed_comm
    from cuda_gctx.comm._local_world import LocalRank as LocalRank
    from cuda_gctx.comm._local_world import LocalWorld as LocalWorld
    from cuda_gctx.comm._local_world import local_world as local_world
    from cuda_gctx.comm._reference import expected as expected
    from cuda_gctx.comm._topology import MixedCommMode as MixedCommMode
    from cuda_gctx.comm._topology import MixedCommOp as MixedCommOp
    from cuda_gctx.comm._topology import ParallelInfo as ParallelInfo
    from cuda_gctx.comm._tuning import TuningTable as TuningTable
    from cuda_gctx.comm._uneven import all_gather_v as all_gather_v
    from cuda_gctx.comm._uneven import reduce_scatter_v as reduce_scatter_v

# The list above is for type checkers, this one is for the interpreter; a test holds them equal.
_NAMES_OF_MODULE = {
    "cuda_gctx.comm._backends": ("CommBackend",),
    "cuda_gctx.comm._faults": ("CommFault",),
    "cuda_gctx.comm._handler": ("MixedCommHandler", "run_mixed_comm"),
    "cuda_gctx.comm._local_world": ("LocalRank", "LocalWorld", "local_world"),
    "cuda_gctx.comm._reference": ("expected",),
    "cuda_gctx.comm._topology": ("MixedCommMode", "MixedCommOp", "ParallelInfo"),
    "cuda_gctx.comm._tuning": ("TuningTable",),
    "cuda_gctx.comm._uneven": ("all_gather_v", "reduce_scatter_v"),
}

# Type checkers, which would take __getattr__ as leave for any name, read the list above alone.
if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_names(globals(), _NAMES_OF_MODULE)
