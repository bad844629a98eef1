"""The pytest plugin as a project uses it: in a pytest run of its own, on tests that pass, leak or misuse."""

from __future__ import annotations

import sys

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.sim_only

HEAD = """
import pytest
from cuda_gctx import ContextOptions, Device, SMResourceOptions, system

def context(dev=None):
    dev = dev or Device(0)
    (group,), _ = dev.resources.sm.split(SMResourceOptions(16))
    return dev.create_context(ContextOptions(resources=[group]))
"""


def run(pytester: pytest.Pytester, body: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(HEAD + body)
    options = ["-p", "no:cacheprovider", "-p", "no:anyio", "--strict-markers"]  # anyio's plugin imports trio
    return pytester.runpytest_subprocess(*options, *arguments)


def test_the_marker_chooses_the_machine(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.gpu_sim("b200", driver="13.4", devices=2)
def test_machine():
    assert Device.count() == 2
    assert Device(1).name.endswith("B200 (simulated)")
    assert system.driver_version == (13, 4)

def test_default(gpu_sim):
    assert Device(0).name == "NVIDIA H200 (simulated)"
    assert system.driver_version == (13, 0)
    assert gpu_sim.calls("cuGreenCtxCreate") == 0

@pytest.mark.gpu_sim(memory=2**30)
def test_other_keys(gpu_sim):
    assert gpu_sim.memory()["total"] == 2**30
""",
    )
    result.assert_outcomes(passed=3)


def test_a_leak_fails_the_test_and_says_where_the_object_was_made(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
import ctypes
kept = []

@pytest.mark.gpu_sim("h200")
def test_leak():
    context().close()
    Device(0).set_current()
    stream = ctypes.c_void_p()
    ctypes.CDLL(system.driver_path).cuStreamCreate(ctypes.byref(stream), 1)  # never destroyed

@pytest.mark.gpu_sim("h200")
def test_after_it():
    context().close()
""",
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        ["*LedgerError: ledger (simulated): not clean*", "*alive: stream*made at *:* in test_leak*"]
    )
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_misuse_fails_the_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
import ctypes

@pytest.mark.gpu_sim("h200")
def test_twice():
    Device(0).set_current()
    driver, stream = ctypes.CDLL(system.driver_path), ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
    assert driver.cuStreamDestroy_v2(stream) == 0
    assert driver.cuStreamDestroy_v2(stream) != 0

@pytest.mark.gpu_sim("h200", check=False)
def test_allowed():
    test_twice()
""",
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*double destroy: cuStreamDestroy_v2*"])


def test_a_test_that_fails_by_itself_keeps_its_own_error(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.gpu_sim("h200")
def test_wrong():
    assert context().sm_count == 17
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 16 == 17*"])


@pytest.mark.parametrize("way", ["-p", "pytest_plugins"])
def test_a_project_may_name_the_plugin_too(pytester: pytest.Pytester, way: str) -> None:
    if way == "pytest_plugins":
        pytester.makeconftest('pytest_plugins = ["cuda_software_driver.pytest_plugin"]')
    arguments = ["-p", "cuda_software_driver.pytest_plugin"] if way == "-p" else []
    result = run(pytester, "def test_machine(gpu_sim):\n    assert Device.count() == 1\n", *arguments)
    result.assert_outcomes(passed=1)


def test_the_marker_is_described(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.gpu_sim(*: run the test on this simulated GPU machine*"])


def test_a_run_that_does_not_use_the_plugin_does_not_load_the_package(pytester: pytest.Pytester) -> None:
    # Installed packages' plugins are loaded in every run: importing the module must cost nothing but itself.
    code = (
        "import sys; import cuda_software_driver.pytest_plugin; "
        "loaded = {name: getattr(module, '__file__', None) or '' for name, module in sys.modules.items()}; "
        "print([n for n, file in loaded.items() if n == 'ctypes' or (n[:9] == 'cuda_gctx' and file.endswith('.so'))])"
    )
    result = pytester.run(sys.executable, "-c", code)
    result.stdout.fnmatch_lines(["[[][]]"])


def test_a_marker_that_names_no_card_is_told_in_one_line(pytester: pytest.Pytester) -> None:
    result = run(pytester, '@pytest.mark.gpu_sim("h300")\ndef test_it(gpu_sim):\n    pass\n')
    result.assert_outcomes(errors=1)
    result.stdout.re_match_lines([r"the marker gpu_sim: .*no card 'h300' is modelled: known are h200, "])
    result.stdout.no_fnmatch_line("*contextlib.py*")
    result.stdout.no_fnmatch_line("*During handling of the above exception*")
