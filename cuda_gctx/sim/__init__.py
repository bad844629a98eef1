"""The software driver: a simulated machine for code that calls the CUDA driver, with a ledger and faults to order.

>>> with cuda_gctx.sim.session("h200", driver="13.1") as machine:   # doctest: +SKIP
...     machine.fail("cuGreenCtxCreate", nth=1)

Importing this loads no driver. ``python -m cuda_gctx.sim`` runs other programs on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cuda_gctx.sim._library import Block as Block
    from cuda_gctx.sim._library import library_folder as library_folder
    from cuda_gctx.sim._library import library_path as library_path
    from cuda_gctx.sim._session import Ledger as Ledger
    from cuda_gctx.sim._session import LedgerError as LedgerError
    from cuda_gctx.sim._session import LiveObject as LiveObject
    from cuda_gctx.sim._session import Misuse as Misuse
    from cuda_gctx.sim._session import Session as Session
    from cuda_gctx.sim._session import make_spec as make_spec
    from cuda_gctx.sim._session import session as session

__all__ = [
    "Block",
    "Ledger",
    "LedgerError",
    "LiveObject",
    "Misuse",
    "Session",
    "library_folder",
    "library_path",
    "make_spec",
    "session",
]

# Each name is imported at first use: the pytest plugin in here is loaded in every pytest run, and must be cheap.
if not TYPE_CHECKING:

    def __getattr__(name):
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = "_library" if name in ("Block", "library_folder", "library_path") else "_session"
        value = getattr(import_module(f"{__name__}.{module}"), name)
        globals()[name] = value
        return value
