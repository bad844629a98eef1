"""Refuses tensors through which autograd would expect a gradient: calls have none."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

__all__ = ["demand_no_gradient"]


@cache
def _torch() -> Any:
    return import_module("torch")


def demand_no_gradient(x_in: Any, x_out: Any) -> None:
    """ValueError for an input or an output that requires grad, unless gradients are off."""
    for name, tensor in (("x_in", x_in), ("x_out", x_out)):
        if tensor is not None and tensor.requires_grad and _torch().is_grad_enabled():
            raise ValueError(
                f"{name} requires grad, and collectives have no gradient: pass {name}.detach(), or call inside "
                "'with torch.no_grad():'"
            )
