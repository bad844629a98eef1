"""Modules that run other libraries in a partition. Each module imports its library at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_gctx._core.lazy import lazy_names

if TYPE_CHECKING:
    from cuda_gctx.interop.sharing import check as check

_NAMES_OF_MODULE = {"cuda_gctx.interop.sharing": ("check",)}

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_names(globals(), _NAMES_OF_MODULE)
