"""A pytest plugin: tests that run on a simulated machine and fail when they leak.

``@pytest.mark.gpu_sim("h200", driver="13.1", devices=2)`` chooses the machine; the fixture ``gpu_sim`` gives its
Session. A test with the marker gets the machine even when it does not ask for the fixture. What a test reads although
no function computes it, on such a machine or on that of ``python -m cuda_gctx.sim run -- pytest``, gives a warning.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cuda_gctx.sim import Session


_failed = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "gpu_sim(profile='h200', driver=None, devices=1, check=True, trace=True, unknown='warn'): run the test on this "
        "simulated GPU machine, and fail it if driver objects leak or are misused",
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "gpu_sim_unknown",
        "what a test gets that reads the result of a kernel without a function on a simulated GPU: warn, error, ignore",
        default="warn",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    simulated = "CUDA_GCTX_SIM" in os.environ  # the whole run
    for item in items:
        names = getattr(item, "fixturenames", None)
        if names is None:
            continue
        if item.get_closest_marker("gpu_sim") is not None and "gpu_sim" not in names:
            names.insert(0, "gpu_sim")
        if simulated:
            names.insert(0, "gpu_sim_results")


# The older kind of wrapper: this plugin is loaded by whatever pytest a project has.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    if report.when == "call":
        item.stash[_failed] = not report.passed


@pytest.fixture
def gpu_sim_results(request: pytest.FixtureRequest) -> Iterator[None]:
    """Reports results that nobody computed, on the machine of the process."""
    __tracebackhide__ = True
    from cuda_gctx.sim._session import report_unknown, unknown_now

    before = unknown_now()
    yield
    report_unknown(before, request.config.getini("gpu_sim_unknown"))


@pytest.fixture
def gpu_sim(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A fresh simulated machine as the driver of cuda_gctx; the test fails if it leaks."""
    __tracebackhide__ = True  # the ledger names the lines that matter
    # Imported here: the plugin is loaded in every pytest run where the package is installed.
    from cuda_gctx.sim import session

    marker = request.node.get_closest_marker("gpu_sim")
    arguments = marker.args if marker is not None else ()
    unknown = request.config.getini("gpu_sim_unknown")
    options = {"trace": True, "unknown": unknown, **(marker.kwargs if marker is not None else {})}
    check = options.pop("check", True)
    with session(*arguments, check=False, **options) as current:
        yield current
    # The traceback of a failed test keeps its objects alive, and its own error is the one to read.
    if check and not request.node.stash.get(_failed, False):
        current.check()
