"""Which driver the tests run on, and the machines that they borrow.

The driver is that of CUDA_GCTX_DRIVER if it is set, else the machine's own if it has a working one, else the software
driver. Tests that need the software driver or a real GPU say so by a marker and are skipped elsewhere.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import cuda_gctx

REPOSITORY = Path(__file__).resolve().parent.parent
DEFAULT_DRIVER = "sim:h200@13.0"
# A test that hangs ends the run with the stacks of all threads. None takes a hundredth of it on an idle machine.
HANGS_AFTER_S = 600
uncaptured = pytest.StashKey[int]()


def has_real_driver() -> bool:
    """Whether a CUDA driver is installed and finds a GPU; asked in a child, which may initialise what it likes."""
    probe = "import ctypes; raise SystemExit(ctypes.CDLL('libcuda.so.1').cuInit(0) != 0)"
    return subprocess.run([sys.executable, "-c", probe], stderr=subprocess.DEVNULL, check=False).returncode == 0


def is_simulated() -> bool:
    return re.match(r"sim(:|$)", os.environ.get("CUDA_GCTX_DRIVER", "")) is not None


def without(items: list[Any], is_left_out: Callable[[Any], bool]) -> list[Any]:
    """Takes some items out of a list, and returns them."""
    others = [item for item in items if is_left_out(item)]
    items[:] = [item for item in items if not is_left_out(item)]
    return others


def needs_the_software_driver(item: pytest.Item) -> bool:
    return item.get_closest_marker("sim_only") is not None or "sim" in getattr(item, "fixturenames", ())


def runs_on_a_real_driver(item: pytest.Item) -> bool:
    """Whether a test uses the machine's driver: many have nothing to do with a GPU, or need the software driver."""
    marked = item.get_closest_marker("gpu_only") or item.get_closest_marker("any_driver")
    uses_it = marked is not None or bool({"dev", "torch"} & set(getattr(item, "fixturenames", ())))
    return uses_it and not needs_the_software_driver(item)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--real-gpu",
        action="store_true",
        help="run on the machine's own driver, and fail where it does not work instead of using the software driver",
    )
    parser.addoption(
        "--on-gpu", action="store_true", help="leave out the tests that are the same on a machine without a GPU"
    )
    parser.addoption(
        "--long", action="store_true", help="run the tests marked long, and no others; without it, all but those"
    )
    parser.addoption(
        "--order",
        default="files",
        metavar="SEED",
        help="run the tests in the random order of this seed, of a new one ('random'), or in the order of the files",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sim_only: needs the software driver; skipped on a real one")
    config.addinivalue_line("markers", "gpu_only: needs a real GPU; skipped on the software driver")
    config.addinivalue_line("markers", "any_driver: runs on a real driver too, in children and without the fixture dev")
    config.addinivalue_line("markers", "alone: measures a GPU or needs all of it; tests/on_gpu.py runs its file alone")
    config.addinivalue_line("markers", "long: takes long; run by --long, which 'make long' gives")
    config.stash[uncaptured] = os.dup(2)
    if config.getoption("--real-gpu"):
        if is_simulated():
            raise pytest.UsageError("--real-gpu and CUDA_GCTX_DRIVER=sim are mutually exclusive")
    elif "CUDA_GCTX_DRIVER" not in os.environ and not has_real_driver():
        os.environ["CUDA_GCTX_DRIVER"] = DEFAULT_DRIVER
    if config.option.order == "random":
        # Worker processes of pytest-xdist inherit the seed: all must collect in one order.
        config.option.order = os.environ.setdefault("CUDA_GCTX_TEST_ORDER", str(random.randrange(1_000_000)))


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
            keep_what_is_loaded()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Fails a test that leaves SMs to the tests after it, outside of a machine of its own."""
    yield
    if is_simulated() and "cuda_gctx._core.extension" in sys.modules:
        uses = cuda_gctx.system.memory().values()
        left = sum(use.open + use.lingering for use in uses)
        if left:
            pytest.fail(f"{left} contexts are left open or lingering", pytrace=False)


def pytest_report_header(config: pytest.Config) -> list[str]:
    driver = os.environ.get("CUDA_GCTX_DRIVER", "libcuda.so.1")
    return [
        f"cuda_gctx {cuda_gctx.__version__} on {'the simulated driver ' if is_simulated() else ''}{driver}",
        f"order of the tests: --order={config.option.order}",
    ]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if terminalreporter.stats.keys() & {"failed", "error"}:  # -q leaves the header out
        terminalreporter.write_line(f"order of the tests: --order={config.option.order}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.order != "files":
        random.Random(config.option.order).shuffle(items)
    others = without(items, lambda item: (item.get_closest_marker("long") is not None) != config.option.long)
    if config.option.on_gpu:
        others += without(items, lambda item: not runs_on_a_real_driver(item))
    config.hook.pytest_deselected(items=others)
    simulated = is_simulated()
    for item in items:
        if needs_the_software_driver(item) and not simulated:
            item.add_marker(pytest.mark.skip(reason="needs the software driver: set CUDA_GCTX_DRIVER=sim"))
        if item.get_closest_marker("gpu_only") and simulated:
            item.add_marker(pytest.mark.skip(reason="needs a real GPU, and the driver of this run is simulated"))


def pytest_collection_finish() -> None:
    keep_what_is_loaded()


def keep_what_is_loaded() -> None:
    """Tests collect garbage often, which takes as long as there are objects: none is among those that are left now."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def sim() -> Iterator[Callable[..., Any]]:
    """Makes simulated machines, checked for leaks when the test ends: ``sim("h200", driver="13.1", devices=2)``."""
    from cuda_software_driver import session

    with ExitStack() as sessions:
        yield lambda *args, **kwargs: sessions.enter_context(session(*args, **kwargs))


@pytest.fixture
def dev() -> Iterator[cuda_gctx.Device]:
    """Device 0 of a fresh machine of the chosen kind, checked for leaks when the test ends; or the real device 0."""
    if not is_simulated():
        yield cuda_gctx.Device(0)
        return
    from cuda_software_driver import session

    spec = re.fullmatch(r"sim(?::(?P<profile>\w+)(?:@(?P<driver>[\d.]+))?)?(?:,.*)?", os.environ["CUDA_GCTX_DRIVER"])
    assert spec is not None, os.environ["CUDA_GCTX_DRIVER"]
    with session(spec["profile"] or "h200", driver=spec["driver"] or "13.0"):
        yield cuda_gctx.Device(0)


@pytest.fixture
def torch(dev: cuda_gctx.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torch itself on a GPU, and on the software driver what plays its part there."""
    if not is_simulated():
        real = pytest.importorskip("torch", reason="torch is not installed here")
        if real.version.cuda is None:
            pytest.skip("torch is built without CUDA")
        yield real
        real.cuda.synchronize()
        return
    from .stand_in_torch import StandInTorch

    stand_in = StandInTorch()
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    yield stand_in
    stand_in.close()
    gc.collect()
