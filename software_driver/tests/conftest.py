"""The tests run without cuda_gctx, also where it is installed: sessions then leave the driver to the tests."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
from collections.abc import Iterator

import pytest

# A test that hangs ends the run with the stacks of all threads.
HANGS_AFTER_S = 600
uncaptured = pytest.StashKey[int]()

sys.modules["cuda_gctx"] = None  # type: ignore[assignment]  # "import cuda_gctx" fails
# The machines of the tests are their own.
for variable in ("CUDA_SOFTWARE_DRIVER_MACHINE", "CUDA_GCTX_DRIVER", "CUDA_VISIBLE_DEVICES"):
    os.environ.pop(variable, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="run the tests marked long, and no others; without it, all but those"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes long; run by --long")
    config.stash[uncaptured] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[uncaptured])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True, file=item.config.stash[uncaptured])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        if nextitem is not None and nextitem.path != item.path:
            freeze_loaded_objects()


def pytest_collection_finish() -> None:
    freeze_loaded_objects()


def freeze_loaded_objects() -> None:
    """Takes the objects of pytest out of later collections: a session with live objects collects garbage at its end."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if (item.get_closest_marker("long") is not None) != config.option.long]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
