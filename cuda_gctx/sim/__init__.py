"""The software driver: a simulated machine for code that calls the CUDA driver, with a ledger and injected faults.

>>> with cuda_gctx.sim.session("h200", driver="13.1") as machine:   # doctest: +SKIP
...     machine.fail("cuGreenCtxCreate", nth=1)

Importing this loads no driver, and nothing else of the package: only ``session()`` asks the core, to make the machine
its driver. ``python -m cuda_gctx.sim`` runs other programs on it.

May use: ``_core``.
"""

from __future__ import annotations

from importlib import import_module
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
    from cuda_gctx.sim._session import UnknownResultWarning as UnknownResultWarning
    from cuda_gctx.sim._session import cards as cards
    from cuda_gctx.sim._session import driver_versions as driver_versions
    from cuda_gctx.sim._session import make_spec as make_spec
    from cuda_gctx.sim._session import session as session

# The list above is for type checkers, this one is for the interpreter. Each name is imported at first use: the pytest
# plugin in here is loaded in every pytest run, and must be cheap.
_NAMES_OF_MODULE = {
    "_library": ("Block", "library_folder", "library_path"),
    "_session": (
        "Ledger",
        "LedgerError",
        "LiveObject",
        "Misuse",
        "Session",
        "UnknownResultWarning",
        "cards",
        "driver_versions",
        "make_spec",
        "session",
    ),
}

if not TYPE_CHECKING:
    __all__ = sorted(name for names in _NAMES_OF_MODULE.values() for name in names)

    def __getattr__(name: str) -> object:
        for module, names in _NAMES_OF_MODULE.items():
            if name in names:
                value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
