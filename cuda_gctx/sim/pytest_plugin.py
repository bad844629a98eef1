"""A pytest plugin: tests that run on a simulated machine and fail when they leak.

``@pytest.mark.gpu_sim("h200", driver="13.1", devices=2)`` chooses the machine; the fixture ``gpu_sim`` gives its
Session. A test with the marker gets the machine even when it does not ask for the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cuda_gctx.sim import Session


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "gpu_sim(profile='h200', driver=None, devices=1, check=True, trace=True): run the test on this simulated GPU machine, and "
        "fail it if driver objects leak or are misused",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu_sim") is not None:
            names = getattr(item, "fixturenames", None)
            if names is not None and "gpu_sim" not in names:
                names.insert(0, "gpu_sim")


@pytest.fixture
def gpu_sim(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A fresh simulated machine as the driver of cuda_gctx; the test fails if it leaks."""
    # Imported here: the plugin is loaded in every pytest run where the package is installed.
    from cuda_gctx.sim import session

    marker = request.node.get_closest_marker("gpu_sim")
    arguments = marker.args if marker is not None else ()
    options = {"trace": True, **(marker.kwargs if marker is not None else {})}
    with session(*arguments, **options) as current:
        yield current
