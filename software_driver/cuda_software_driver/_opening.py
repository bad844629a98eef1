"""Opening a simulated machine as the driver of this package: the one thing in this room that needs the core."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from ._session import (
    Policy,
    Session,
    UnknownResultWarning,
    check_policy,
    hide_frames_of,
    library,
    make_spec,
    running,
)

__all__ = ["session"]


@contextmanager
def session(
    profile: str = "h200",
    driver: str | None = None,
    devices: int = 1,
    *,
    check: bool = True,
    trace: bool = False,
    unknown: Policy = "warn",
    **options: int,
) -> Iterator[Session]:
    """A fresh simulated machine as the driver of this package.

    profile: the card (see ``python -m cuda_software_driver profiles``). driver: the CUDA version, such as "13.1".
    devices: the number of cards. options: other keys of the machine's description (``connections``,
    ``max_contexts``, ``memory``, ``resident``).
    check: at the end, live objects and misuse raise LedgerError; an exception of the block takes precedence.
    trace: on the main thread, the ledger also reports the line that made each object; for objects of other
    threads it reports only the thread.
    unknown: what follows if the program read results of kernels that nobody computed, or times of kernels whose cost is
    not registered. "warn": an UnknownResultWarning at the end; "error": no time between two events that includes such a
    kernel (CUDA_ERROR_NOT_SUPPORTED), and a LedgerError at the end, as part of check; "ignore": nothing.
    """
    check_policy(unknown)
    import cuda_gctx
    from cuda_gctx._core.extension import close_driver, open_driver, resume_driver, set_driver_aside

    hide_frames_of(cuda_gctx.__path__)
    spec = make_spec(profile, driver, devices, **options) + (",unknown=error" if unknown == "error" else "")
    # Objects of the outer machine are not destroyed on this one.
    set_driver_aside()
    library().push()
    try:
        # The devices that the caller asked for, whatever CUDA_VISIBLE_DEVICES leaves to programs.
        token = open_driver(f"sim:{spec},visible=all")
        with running(spec, unknown, trace, lambda: close_driver(token)) as current:
            yield current
        if check:
            current.check()
        if unknown == "warn" and (found := current.ledger().unknown):
            warnings.warn("\n".join(found), UnknownResultWarning, stacklevel=3)
    finally:
        library().pop()
        resume_driver()
