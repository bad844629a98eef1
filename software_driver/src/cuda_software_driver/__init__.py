"""The software driver: a simulated machine for code that calls the CUDA driver, with a ledger and injected faults.

>>> with cuda_software_driver.session("h200", driver="13.1") as machine:   # doctest: +SKIP
...     machine.fail("cuGreenCtxCreate", nth=1)

Importing the package loads no driver. ``python -m cuda_software_driver`` runs other programs on a simulated machine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from ._library import Block as Block
    from ._library import library_folder as library_folder
    from ._library import library_path as library_path
    from ._library import programs_folder as programs_folder
    from ._session import Ledger as Ledger
    from ._session import LedgerError as LedgerError
    from ._session import LiveObject as LiveObject
    from ._session import Misuse as Misuse
    from ._session import Session as Session
    from ._session import cards as cards
    from ._session import driver_versions as driver_versions
    from ._session import make_spec as make_spec
    from ._session import session as session

# The list above is for type checkers, this list is for the interpreter. Each name is imported at first use: every
# pytest run loads the plugin of this package, which must be cheap.
_NAMES_OF_MODULE = {
    "_library": ("Block", "library_folder", "library_path", "programs_folder"),
    "_session": (
        "Ledger",
        "LedgerError",
        "LiveObject",
        "Misuse",
        "Session",
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
