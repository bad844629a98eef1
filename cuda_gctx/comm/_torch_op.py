"""Operations of torch for the calls of handlers, which torch.compile keeps in its graphs. Loads torch.

A graph knows a handler by a number. Each call declares that it changes a tensor of the handler, its state, which no
call reads. So a compiler keeps all calls of a handler, in their order, whether or not this rank uses their outputs: the
other ranks wait for each of them.
"""

from __future__ import annotations

import itertools
from importlib import import_module
from typing import Any
from weakref import WeakMethod

from cuda_gctx.comm._gradients import demand_no_gradient
from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp

__all__ = ["call", "is_compiling", "new_state", "number_of"]

torch: Any = import_module("torch")
is_compiling = torch.compiler.is_compiling  # or exporting
is_traced = torch.compiler.is_dynamo_compiling

NO_MODE = NO_ROOT = -1
_numbers = itertools.count()
_calls: dict[int, WeakMethod[Any]] = {}


def number_of(run: Any) -> int:
    """A new number for a handler, by the method that runs its calls. The handler is not kept alive."""
    number = next(_numbers)
    _calls[number] = WeakMethod(run, lambda gone: _calls.pop(number))
    return number


def new_state() -> Any:
    """Returns the state of a handler."""
    return torch.zeros(1)


def _method(number: int) -> Any:
    found = _calls.get(number)
    run = None if found is None else found()
    if run is None:
        raise RuntimeError("the handler that this graph was compiled with no longer exists")
    return run


def call(state: Any, number: int, op: Any, x_in: Any, x_out: Any, mode: Any, root: Any) -> Any:
    """A call of a handler as a node of a graph."""
    how = int(op), NO_MODE if mode is None else int(mode), NO_ROOT if root is None else root
    if x_out is None:
        return torch.ops.cuda_gctx.mixed_comm(x_in, state, number, *how)
    torch.ops.cuda_gctx.mixed_comm_out(x_in, x_out, state, number, *how)
    return x_out


def _run(x_in: Any, x_out: Any, number: int, of_op: int, by_mode: int, root: int) -> Any:
    chosen = None if by_mode == NO_MODE else MixedCommMode(by_mode)
    return _method(number)(MixedCommOp(of_op), x_in, x_out, chosen, root=None if root == NO_ROOT else root)


def _mixed_comm(x_in: Any, state: Any, number: int, of_op: int, by_mode: int, root: int) -> Any:
    return _run(x_in, None, number, of_op, by_mode, root)


def _mixed_comm_out(x_in: Any, x_out: Any, state: Any, number: int, of_op: int, by_mode: int, root: int) -> None:
    _run(x_in, x_out, number, of_op, by_mode, root)


def _shape_of_mixed_comm(x_in: Any, state: Any, number: int, of_op: int, by_mode: int, root: int) -> Any:
    return x_in.new_empty(_method(number).__self__.para_info.output_shape(MixedCommOp(of_op), x_in.shape))


def _nothing(x_in: Any, x_out: Any, state: Any, number: int, of_op: int, by_mode: int, root: int) -> None:
    pass


def _refusing_gradients(name: str) -> Any:
    """The operation for tensors of autograd: refuses those that require grad."""

    def run(x_in: Any, *others: Any) -> Any:
        x_out = others[0] if name == "mixed_comm_out" else None
        demand_no_gradient(x_in, x_out)
        with torch._C._AutoDispatchBelowAutograd():
            return getattr(torch.ops.cuda_gctx, name)(x_in, *others)

    return run


# Not called mode, as torch's operations that call these are given one by that name.
_library = torch.library.Library("cuda_gctx", "FRAGMENT")
HOW = "int handler, int of_op, int by_mode, int root"
_library.define(f"mixed_comm(Tensor x_in, Tensor(a!) state, {HOW}) -> Tensor")
_library.define(f"mixed_comm_out(Tensor x_in, Tensor(a!) x_out, Tensor(b!) state, {HOW}) -> ()")
for _kind in ("CPU", "CUDA"):
    _library.impl("mixed_comm", _mixed_comm, _kind)
    _library.impl("mixed_comm_out", _mixed_comm_out, _kind)
for _name in ("mixed_comm", "mixed_comm_out"):
    _library.impl(_name, _refusing_gradients(_name), "Autograd")
torch.library.register_fake("cuda_gctx::mixed_comm", _shape_of_mixed_comm, lib=_library)
torch.library.register_fake("cuda_gctx::mixed_comm_out", _nothing, lib=_library)
