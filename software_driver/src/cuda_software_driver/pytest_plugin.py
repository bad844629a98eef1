"""A pytest plugin: tests that run on a simulated machine, and fail when they leak.

``@pytest.mark.gpu_sim("h200", driver="13.1", devices=2)`` gives a test its own machine; the fixture ``gpu_sim`` is the
machine's Session, and the marker works without the fixture too.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from . import Session

_failed = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "gpu_sim(profile='h200', driver=None, devices=1, check=True, trace=True, unknown='error'): run the test on "
        "this simulated GPU machine, and fail it if driver objects leak or are misused",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(item, "fixturenames", None)
        if names is None:
            continue
        if item.get_closest_marker("gpu_sim") is not None and "gpu_sim" not in names:
            names.insert(0, "gpu_sim")


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
    options = {"trace": True, **(marker.kwargs if marker is not None else {})}
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
