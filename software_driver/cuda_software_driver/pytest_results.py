"""A pytest plugin: reports unknown results that a test reads, when the whole run uses one simulated machine.

The package's ``run`` command starts such a run. The test gets a warning; an option makes it fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

_FIXTURE = f"{__package__}.results"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "gpu_sim_unknown",
        "what a test gets that reads the result of a kernel without a function on a simulated GPU: warn, error, ignore",
        default="warn",
    )


def _is_own_machine() -> bool:
    """Whether the run uses the machine of this package, rather than that of another installed copy."""
    if "CUDA_GCTX_SIM" not in os.environ:
        return False
    from ._library import library_path

    return os.environ.get("CUDA_GCTX_DRIVER", library_path()) == library_path()


# Last, so that what a session reads is reported by the session alone.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _is_own_machine():
        for item in items:
            if hasattr(item, "fixturenames"):
                item.fixturenames.insert(0, _FIXTURE)


@pytest.fixture(name=_FIXTURE)
def results(request: pytest.FixtureRequest) -> Iterator[None]:
    """Reports unknown results on the machine of the process."""
    __tracebackhide__ = True
    from ._session import report_unknown, unknown_now

    before = unknown_now()
    yield
    report_unknown(before, request.config.getini("gpu_sim_unknown"))
