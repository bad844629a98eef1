"""The software driver: a simulated machine for code that calls the CUDA driver, with a ledger and faults to order.

>>> with cuda_gctx.sim.session("h200", driver="13.1") as machine:   # doctest: +SKIP
...     machine.fail("cuGreenCtxCreate", nth=1)

Importing this loads no driver. ``python -m cuda_gctx.sim`` runs other programs on it.
"""

from cuda_gctx.sim._library import Block, library_folder, library_path
from cuda_gctx.sim._session import Ledger, LedgerError, LiveObject, Misuse, Session, make_spec, session

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
