"""The pytest plugin as a project uses it: in a pytest run of its own, on tests that pass, leak or misuse."""

from __future__ import annotations

import sys

import pytest

pytest_plugins = ["pytester"]

HEAD = """
import ctypes
import pytest
from cuda_software_driver import library_path

driver = ctypes.CDLL(library_path())

def number(call, *arguments):
    found = ctypes.c_int()
    assert driver.cuInit(0) == 0
    assert getattr(driver, call)(ctypes.byref(found), *arguments) == 0
    return found.value

def name(device):
    text = ctypes.create_string_buffer(100)
    assert driver.cuInit(0) == driver.cuDeviceGetName(text, 100, device) == 0
    return text.value.decode()

class Primary:
    def __enter__(self):
        context = ctypes.c_void_p()
        assert driver.cuInit(0) == driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        driver.cuCtxSetCurrent(context)

    def __exit__(self, *error):
        driver.cuCtxSetCurrent(None)
        driver.cuDevicePrimaryCtxRelease_v2(0)

def stream():
    made = ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(made), 1) == 0
    return made
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
    assert number("cuDeviceGetCount") == 2
    assert name(1).endswith("B200 (simulated)")
    assert number("cuDriverGetVersion") == 13040

def test_default(gpu_sim):
    assert name(0) == "NVIDIA H200 (simulated)"
    assert number("cuDriverGetVersion") == 13000
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
@pytest.mark.gpu_sim("h200")
def test_leak():
    with Primary():
        stream()  # never destroyed

@pytest.mark.gpu_sim("h200")
def test_after_it():
    with Primary():
        driver.cuStreamDestroy_v2(stream())
""",
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*LedgerError: ledger (simulated): not clean*", "*alive: stream*made at *:* in *"])
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_misuse_fails_the_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.gpu_sim("h200")
def test_twice():
    with Primary():
        made = stream()
        assert driver.cuStreamDestroy_v2(made) == 0
        assert driver.cuStreamDestroy_v2(made) != 0

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
    with Primary():
        stream()
        assert number("cuDeviceGetAttribute", 16, 0) == 17
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 132 == 17*"])


@pytest.mark.parametrize("way", ["-p", "pytest_plugins"])
def test_a_project_may_name_the_plugin_too(pytester: pytest.Pytester, way: str) -> None:
    if way == "pytest_plugins":
        pytester.makeconftest('pytest_plugins = ["cuda_software_driver.pytest_plugin"]')
    arguments = ["-p", "cuda_software_driver.pytest_plugin"] if way == "-p" else []
    result = run(pytester, 'def test_machine(gpu_sim):\n    assert number("cuDeviceGetCount") == 1\n', *arguments)
    result.assert_outcomes(passed=1)


def test_the_marker_is_described(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.gpu_sim(*: run the test on this simulated GPU machine*"])


def test_a_run_that_does_not_use_the_plugin_does_not_load_the_package(pytester: pytest.Pytester) -> None:
    # Installed packages' plugins are loaded in every run: importing the module must cost nothing but itself.
    code = (
        "import sys; import cuda_software_driver.pytest_plugin; "
        "loaded = {name: getattr(module, '__file__', None) or '' for name, module in sys.modules.items()}; "
        "print([n for n, file in loaded.items() if n == 'ctypes' or n[:9] == 'cuda_gctx'])"
    )
    result = pytester.run(sys.executable, "-c", code)
    result.stdout.fnmatch_lines(["[[][]]"])


def test_a_marker_that_names_no_card_is_told_in_one_line(pytester: pytest.Pytester) -> None:
    result = run(pytester, '@pytest.mark.gpu_sim("h300")\ndef test_it(gpu_sim):\n    pass\n')
    result.assert_outcomes(errors=1)
    result.stdout.re_match_lines([r"the marker gpu_sim: .*no card 'h300' is modelled: known are h200, "])
    result.stdout.no_fnmatch_line("*contextlib.py*")
    result.stdout.no_fnmatch_line("*During handling of the above exception*")
