"""All-gathers and reduce-scatters in which each rank has its own number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuda_gctx.comm._handler import MixedCommHandler, run_mixed_comm
from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp
from cuda_gctx.extending import as_int

__all__ = ["all_gather_v", "reduce_scatter_v"]


def _joined(parts: Sequence[Any], out: Any = None) -> Any:
    import torch  # in a form that torch.compile can read

    return torch.cat(parts, out=out)


def _checked(
    handler: MixedCommHandler, op: MixedCommOp, x_in: Any, x_out: Any, counts: Sequence[int]
) -> tuple[list[int], int, int]:
    """Returns the counts, the largest one, and the one of this rank; ValueError if the tensors do not fit them."""
    info = handler.para_info
    info.demand_valid(op)
    if len(counts) != info.world_size:
        raise ValueError(f"counts must have a number for each of {info.world_size} ranks, not {len(counts)} numbers")
    import torch

    # torch.compile reads this function, and cannot read compiled ones.
    if not torch.compiler.is_dynamo_compiling():
        counts = [as_int(f"counts[{rank}]", count, 0) for rank, count in enumerate(counts)]
    own, total = counts[info.world_rank], sum(counts)
    for name, tensor, rows in (("x_in", x_in, own), ("x_out", x_out, total)):
        shape = (rows if op.gathers else own + total - rows, *x_in.shape[1:])
        if tensor is not None and (tensor.shape != shape or tensor.dtype != x_in.dtype):
            raise ValueError(
                f"{name} must have shape {list(shape)} and dtype {x_in.dtype}, not {list(tensor.shape)} and "
                f"{tensor.dtype}"
            )
    return list(counts), max(counts), own


def all_gather_v(
    handler: MixedCommHandler,
    x_in: Any,
    counts: Sequence[int],
    x_out: Any = None,
    mode: MixedCommMode | None = None,
) -> Any:
    """Gathers a number of rows of its own from each rank, and returns them in the order of the ranks.

    handler: that of this rank, with tp_size 1. x_in: the rows of this rank. counts: the numbers of rows of all ranks,
    the same on all ranks; 0 is allowed. x_out: the output, with the rows of all ranks; None: a new tensor.
    mode: None lets the handler choose.

    Every rank sends as many rows as the largest count. Raises ValueError if the tensors do not fit the counts.
    """
    op = MixedCommOp.ALLGATHER
    counts, largest, own = _checked(handler, op, x_in, x_out, counts)
    if min(counts) == largest:
        return run_mixed_comm(op, handler, x_in, x_out, mode)
    padded = _joined([x_in, x_in.new_empty((largest - own, *x_in.shape[1:]))])
    gathered = run_mixed_comm(op, handler, padded, None, mode)
    parts = [gathered[rank * largest :][:count] for rank, count in enumerate(counts)]
    return _joined(parts, x_out)


def reduce_scatter_v(
    handler: MixedCommHandler,
    x_in: Any,
    counts: Sequence[int],
    x_out: Any = None,
    mode: MixedCommMode | None = None,
) -> Any:
    """Sums the inputs of all ranks, and returns the rows of this rank: each rank has a number of its own.

    handler: that of this rank, with tp_size 1. x_in: the rows for all ranks, in the order of the ranks.
    counts: the numbers of rows of all ranks, the same on all ranks; 0 is allowed. x_out: the output, with the rows of
    this rank; None: a new tensor. mode: None lets the handler choose.

    Every rank receives as many rows as the largest count. Raises ValueError if the tensors do not fit the counts.
    """
    op = MixedCommOp.REDUCESCATTER
    counts, largest, own = _checked(handler, op, x_in, x_out, counts)
    if min(counts) == largest:
        return run_mixed_comm(op, handler, x_in, x_out, mode)
    padding = x_in.new_empty((largest - min(counts), *x_in.shape[1:]))
    parts = [part for rows in x_in.split(counts) for part in (rows, padding[: largest - rows.shape[0]])]
    scattered = run_mixed_comm(op, handler, _joined(parts), None, mode)[:own]
    return scattered if x_out is None else x_out.copy_(scattered)
