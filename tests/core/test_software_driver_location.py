"""The places where the SDK looks for the software driver: a variable, next to the package, and an import of Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cuda_gctx
from cuda_software_driver import library_folder, library_path

from ..common import run_python

pytestmark = pytest.mark.sim_only

CORE = Path(cuda_gctx.get_include()).parent / "libcuda_gctx.so"
# A program in C, in effect: it opens the core by its C interface, and no package can be imported.
PROGRAM = """
import ctypes, sys
core = ctypes.CDLL(sys.argv[1])
core.gctx_last_error.restype = ctypes.c_char_p
sms = ctypes.c_void_p()
done = core.gctx_open(None) == 0 and core.gctx_device(0, ctypes.byref(sms)) == 0
print(core.gctx_sm_count(sms) if done else core.gctx_last_error(None).decode())
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages whose path has a space, with the core of this package alone."""
    folder = tmp_path / "my packages"
    (folder / "cuda_gctx").mkdir(parents=True)
    shutil.copy(CORE, folder / "cuda_gctx")
    return folder


def opened(site: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM, str(site / "cuda_gctx" / CORE.name)],
        env={**os.environ, "CUDA_GCTX_DRIVER": "sim:h100", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_library_next_to_the_package_is_found(site: Path) -> None:
    shutil.copytree(library_folder(), site / "cuda_software_driver" / "lib")
    assert opened(site) == "132"


def test_the_variable_names_a_library_in_any_place(site: Path) -> None:
    other = site.parent / "another place"
    shutil.copytree(library_folder(), other)
    assert opened(site, CUDA_SOFTWARE_DRIVER=str(other / Path(library_path()).name)) == "132"


def test_the_variable_comes_before_the_library_next_to_the_package(site: Path) -> None:
    shutil.copytree(library_folder(), site / "cuda_software_driver" / "lib")
    message = opened(site, CUDA_SOFTWARE_DRIVER=str(site / "nothing.so"))
    assert message.startswith("the software driver could not be opened (")
    assert f"{site / 'nothing.so'}" in message
    assert "correct CUDA_SOFTWARE_DRIVER" in message


def test_another_library_is_not_taken_for_the_software_driver(site: Path) -> None:
    message = opened(site, CUDA_SOFTWARE_DRIVER="libc.so.6")
    assert message == "libc.so.6 is not the software driver: correct CUDA_SOFTWARE_DRIVER"


def test_without_the_software_driver_the_message_names_the_command(site: Path) -> None:
    assert opened(site) == (
        "CUDA_GCTX_DRIVER=sim:h100 is the software driver, which is not installed: run pip install ./software_driver "
        "in a clone of cuda_gctx, or set CUDA_SOFTWARE_DRIVER to the path of libcuda_software_driver.so"
    )


def test_without_a_driver_the_message_says_how_to_use_the_software_driver_or_how_to_install_it(site: Path) -> None:
    no_driver = {"CUDA_GCTX_DRIVER": "", "LD_LIBRARY_PATH": ""}
    assert "install the software driver (pip install ./software_driver in a clone" in opened(site, **no_driver)
    shutil.copytree(library_folder(), site / "cuda_software_driver" / "lib")
    message = opened(site, **no_driver)
    assert message.endswith("or, without a GPU, set CUDA_GCTX_DRIVER=sim")
    assert "pip install" not in message


def test_python_finds_the_software_driver_of_another_folder_of_its_path(tmp_path: Path) -> None:
    package = tmp_path / "my packages" / "cuda_software_driver"
    shutil.copytree(library_folder(), package / "lib")
    (package / "__init__.py").touch()
    done = run_python(
        """
import sys
# An editable install of the software driver comes before the path.
sys.meta_path[:] = [finder for finder in sys.meta_path if "software_driver" not in type(finder).__module__]
from cuda_gctx import system
print(system.driver_path)
""",
        PYTHONPATH=os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")])),
        CUDA_GCTX_DRIVER="sim",
    )
    assert done.returncode == 0, done.stderr
    beside = CORE.parents[1] / "cuda_software_driver" / "lib"
    expected = beside if beside.exists() else package / "lib"
    assert Path(done.stdout.strip()) == (expected / Path(library_path()).name).resolve()


def test_a_block_uses_another_library_and_the_former_driver_resumes() -> None:
    done = run_python(
        """
from cuda_gctx import Device, system
import cuda_software_driver as other
dev = Device()
with system.use_driver(other.library_path()):
    try:
        dev.context.create_stream()
    except RuntimeError as error:
        print(error)
    inner = Device().context
dev.context.create_stream().close()
try:
    inner.create_stream()
except RuntimeError as error:
    print(error)
""",
        CUDA_GCTX_DRIVER="sim",
    )
    assert done.returncode == 0, done.stderr
    aside, closed = done.stdout.splitlines()
    assert aside == "the driver that this object belongs to is inactive while another one is in use"
    assert "closed" in closed
