"""A pytest plugin: tests that run on a simulated machine, and fail when they leak or read what nobody computed.

``@pytest.mark.gpu_sim("h200", driver="13.1", devices=2)`` gives a test a machine of its own; the fixture ``gpu_sim`` is
its Session, and the marker works without the fixture too. Tests without a machine of their own that run below
``python -m cuda_software_driver run`` share the machine of the process; there the plugin reports unknown results.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from . import Session

_SHARED_MACHINE = f"{__package__}.shared_machine"

_failed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "gpu_sim_unknown",
        "what a test gets that reads the result of a kernel without a function on a simulated GPU: warn, error, ignore",
        default="warn",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "gpu_sim(profile='h200', driver=None, devices=1, check=True, trace=True, unknown='warn'): run the test on this "
        "simulated GPU machine, and fail it if driver objects leak or are misused",
    )


# Last, so that a session reports its own unknown results alone.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(item, "fixturenames", None)
        if names is None:
            continue
        if item.get_closest_marker("gpu_sim") is not None and "gpu_sim" not in names:
            names.insert(0, "gpu_sim")
        if "CUDA_SOFTWARE_DRIVER_MACHINE" in os.environ:
            names.insert(0, _SHARED_MACHINE)


# The older kind of wrapper: this plugin is loaded by whatever pytest a project has.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    if report.when == "call":
        item.stash[_failed] = not report.passed


@pytest.fixture
def gpu_sim(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A fresh simulated machine; the test fails if it leaks."""
    __tracebackhide__ = True  # the ledger names the lines that matter
    # Imported here: every pytest run in the environment loads the plugin.
    from . import session

    marker = request.node.get_closest_marker("gpu_sim")
    arguments = marker.args if marker is not None else ()
    unknown = request.config.getini("gpu_sim_unknown")
    options = {"trace": True, "unknown": unknown, **(marker.kwargs if marker is not None else {})}
    check = options.pop("check", True)
    with ExitStack() as closing:
        try:
            current = closing.enter_context(session(*arguments, check=False, **options))
        except (TypeError, ValueError) as error:
            raise pytest.fail.Exception(f"the marker gpu_sim: {error}", pytrace=False) from None
        yield current
    # The traceback of a failed test keeps its objects alive, and its own error is the one to read.
    if check and not request.node.stash.get(_failed, False):
        current.check()


@pytest.fixture(name=_SHARED_MACHINE)
def shared_machine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Reports unknown results that the test reads on the machine of the process."""
    __tracebackhide__ = True
    from ._session import report_unknown, unknown_now

    before = unknown_now()
    yield
    report_unknown(before, request.config.getini("gpu_sim_unknown"))
