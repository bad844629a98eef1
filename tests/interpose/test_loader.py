"""Every way to open the driver opens the library. A stand-in for the driver has a function that the library lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_gctx import interpose
from cuda_gctx.partitions import layout_of_text

from .common import compiled

DRIVER = """
int cuInit(unsigned flags) { return 100; }
int cuNewest(void) { return 102; }
int cuCtxSetCurrent(void *context) { return 201; }
"""
# Prints whether the handle has the driver's new function, and whether its cuCtxSetCurrent is that of the library.
OPENER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int count, char **words) {
  for (int i = 1; i < count; ++i) {
    int flags = RTLD_NOW;
    char *name = words[i];
    void *handle;
    if (!strncmp(name, "deep:", 5)) { flags |= RTLD_DEEPBIND; name += 5; }
    if (!strncmp(name, "noload:", 7)) { flags |= RTLD_NOLOAD; name += 7; }
    handle = !strncmp(name, "new:", 4) ? dlmopen(LM_ID_NEWLM, name + 4, RTLD_NOW) : dlopen(name, flags);
    if (handle == NULL) { puts(dlerror()); continue; }
    int (*newest)(void) = dlsym(handle, "cuNewest");
    Dl_info info;
    dladdr(dlsym(handle, "cuCtxSetCurrent"), &info);
    printf("%s %d\\n", strstr(info.dli_fname, "/real/") ? "driver" : "library", newest ? newest() : 0);
  }
  return 0;
}
"""
LINKED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int cuNewest(void);
int cuCtxSetCurrent(void *context);
int main(void) {
  Dl_info info;
  dladdr((void *)&cuCtxSetCurrent, &info);
  printf("%s %d\\n", strstr(info.dli_fname, "/real/") ? "driver" : "library", cuNewest());
  return 0;
}
"""
LAYOUT = layout_of_text("control=16,rest")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("loader")
    (root / "real").mkdir()
    driver = compiled(root / "real" / "libcuda.so.580.1", DRIVER, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    for name in ("libcuda.so.1", "libcuda.so"):
        (root / "real" / name).symlink_to(driver)
    compiled(root / "opener", OPENER, "-ldl")
    compiled(root / "linked", LINKED, "-L", str(root / "real"), "-lcuda", "-ldl", "-fPIC", "-pie")
    return root


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    inherited = {**os.environ, "LD_LIBRARY_PATH": str(folder / "real")}
    return interpose.environment_of(LAYOUT, "control", str(folder / "real" / "libcuda.so.580.1"), inherited)


def printed(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("first", ["absolute", "name"])
def test_every_way_to_open_the_driver_opens_the_library(folder: Path, environment: dict[str, str], first: str) -> None:
    real = folder / "real"
    ways = ["libcuda.so.1", "deep:libcuda.so.1", "libcuda.so", f"{real}/libcuda.so.1", f"{real}/libcuda.so.580.1"]
    if first == "absolute":
        ways.reverse()
    ways += ["noload:libcuda.so.1", "new:libcuda.so.1"]
    assert printed([str(folder / "opener"), *ways], environment) == "library 102\n" * 7


def test_a_program_that_is_linked_with_the_driver_uses_the_library(folder: Path, environment: dict[str, str]) -> None:
    assert printed([str(folder / "linked")], environment) == "library 102\n"


def test_a_program_that_does_not_open_the_driver_does_not_load_the_library(environment: dict[str, str]) -> None:
    maps = printed([sys.executable, "-c", "print(open('/proc/self/maps').read())"], environment)
    assert interpose.AUDITOR in maps
    assert interpose.LIBRARY not in maps


def test_older_systems_preload_the_library(
    folder: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpose, "AUDITED_SINCE", (99,))
    inherited = {**os.environ, "LD_LIBRARY_PATH": str(folder / "real")}
    older = interpose.environment_of(LAYOUT, "control", str(folder / "real" / "libcuda.so.580.1"), inherited)
    assert "LD_AUDIT" not in older
    assert printed([str(folder / "opener"), "libcuda.so.1", "libcuda.so"], older) == "library 102\n" * 2


def test_a_program_inside_of_another_partition_has_one_library(environment: dict[str, str]) -> None:
    real = os.path.realpath(Path(environment["LD_AUDIT"]).parent / "libcuda-real.so.1")
    inner = interpose.environment_of(LAYOUT, "rest", real, environment)
    assert inner["LD_AUDIT"] == environment["LD_AUDIT"]
    assert inner["CUDA_GCTX_PART"].startswith("rest 1 ")
