"""A whole process in a partition: the environment that puts a library between its programs and the driver.

The library takes the place of ``libcuda.so.1``, and hands out a green context wherever the primary context is meant.
docs/run-a-program.md describes what it does, and its limits.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

import cuda_gctx
from cuda_gctx.partitions import BACKGROUND, LAYOUT_VARIABLE, Layout, PartitionSpec
from cuda_gctx.partitions.words import PART_VARIABLE

__all__ = ["InterposeError", "compiled", "environment_of", "folder_for_sockets", "installed_driver", "is_tried"]

# From this version of glibc on, an auditor costs a program nothing and is called for every way to load a library.
AUDITED_SINCE = (2, 35)
# The versions of the drivers that programs in partitions were tried with (docs/evidence).
TRIED_VERSIONS = (13000,)
LONGEST_FOR_SOCKETS = 60
LIBRARY = "libcuda_gctx_interpose.so"
AUDITOR = "libcuda_gctx_auditor.so"


class InterposeError(RuntimeError):
    """A program cannot be put into a partition here."""


def compiled(name: str) -> Path:
    """A compiled file of this room. An editable install keeps these files apart from the sources."""
    for folder in cuda_gctx.__path__:
        file = Path(folder, "interpose", name)
        if file.is_file():
            return file.resolve()
    raise InterposeError(f"{name} is missing: install cuda_gctx again")


def installed_driver() -> str:
    """The path of the machine's own libcuda.so.1."""

    class Info(ctypes.Structure):
        _fields_ = (
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("symbol", ctypes.c_char_p),
            ("address", ctypes.c_void_p),
        )

    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise InterposeError(
            f"no CUDA driver could be opened ({error}): install the NVIDIA driver, or set CUDA_GCTX_DRIVER"
        ) from None
    info = Info()
    ctypes.CDLL(None).dladdr(ctypes.cast(driver.cuInit, ctypes.c_void_p), ctypes.byref(info))
    return os.path.realpath(os.fsdecode(info.file))


def is_tried(driver: str) -> bool:
    """Return whether programs in partitions were tried on cards with a driver of this version.

    driver: the path of the driver.
    """
    version = ctypes.c_int()
    library = ctypes.CDLL(driver, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    return library.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value in TRIED_VERSIONS


def _word_of(name: str, spec: PartitionSpec) -> str:
    """A group of a layout as the library reads it."""
    if spec.workqueue is not None:
        raise InterposeError(f"partition {name} has options of workqueues, which a whole program cannot have")
    sms = spec.sms
    if sms is None:
        return "aligned" if spec.aligned else "rest"
    if isinstance(sms, int):
        return str(sms)
    if isinstance(sms, float):
        return f"{sms:.9f}"
    if sms.locality_domain is not None or sms.preferred_coscheduled_sm_count is not None:
        raise InterposeError(
            f"partition {name} has options that a whole program cannot have: only count, coscheduled_sm_count and "
            "backfill are possible"
        )
    count = sms.count[0] if isinstance(sms.count, tuple) else sms.count
    words = ["aligned" if count is None else str(count)]
    coscheduled = sms.coscheduled_sm_count
    coscheduled = coscheduled[0] if isinstance(coscheduled, tuple) else coscheduled
    if coscheduled:
        words.append(str(coscheduled))
    if sms.backfill:
        words.append("backfill")
    return "/".join(words)


def part_of(layout: Layout, name: str) -> str:
    """The value of CUDA_GCTX_PART for one partition of a layout."""
    names = [*layout.names, BACKGROUND]
    groups = [_word_of(*pair) for pair in zip(layout.names, layout.specs, strict=True)]
    if name == BACKGROUND and "rest" in groups:
        taker = layout.names[groups.index("rest")]
        raise InterposeError(f"{layout} has no background partition: {taker} takes all remaining SMs")
    return " ".join([name, str(names.index(name)), *groups])


def folder_for_sockets() -> str:
    """The folder for temporary files, or /tmp if its path is too long for sockets, whose paths have 107 bytes."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= LONGEST_FOR_SOCKETS else "/tmp"


def _links(real: str) -> dict[str, Path]:
    return {
        "libcuda.so.1": compiled(LIBRARY),
        "libcuda.so": compiled(LIBRARY),
        "libcuda-real.so.1": Path(real),
        AUDITOR: compiled(AUDITOR),
    }


def _own_folder() -> Path:
    """The folder of this user for the links. It stays, because background processes may load the library later."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")  # names a folder that is not there after su, or in a container
    base = Path(runtime if os.path.isdir(runtime) else tempfile.gettempdir(), f"cuda-gctx-{os.getuid()}")
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        found = base.lstat()
    except OSError as error:
        raise InterposeError(f"the folder {base} cannot be made ({error.strerror}): set TMPDIR") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise InterposeError(f"{base} belongs to another user or can be written by others: remove it, or set TMPDIR")
    return base


def links_to(real: str) -> Path:
    """The folder with the library under the names of the driver, and a link to the real driver."""
    links = _links(real)
    key = hashlib.sha256("\n".join(map(str, links.values())).encode()).hexdigest()[:16]
    folder = _own_folder() / key
    if not folder.is_dir():
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        for name, target in links.items():
            (made / name).symlink_to(target)
        try:
            made.rename(folder)
        except OSError:  # another process made the same folder at the same time
            for name in links:
                (made / name).unlink()
            made.rmdir()
    return folder


def _glibc() -> tuple[int, ...]:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (OSError, ValueError):
        name = ""
    if name != "glibc":
        raise InterposeError("this system has another C library than glibc: a program cannot be put into a partition")
    return tuple(int(number) for number in version.split(".")[:2])


def environment_of(layout: Layout, name: str, real: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program in one partition of a layout.

    layout: the partitions of each device. name: the partition. real: the path of the driver to stand before.
    inherited: the environment without the partition.
    """
    folder = links_to(real)
    environment = dict(inherited)
    for variable in (LAYOUT_VARIABLE, "CUDA_GCTX_DRIVER"):  # the program opens libcuda.so.1, and splits its part
        environment.pop(variable, None)
    environment[PART_VARIABLE] = part_of(layout, name)

    def put_first(variable: str, value: str) -> None:
        # A program inside of another partition leaves that partition's library.
        others = [
            word
            for word in environment.get(variable, "").split(":")
            if word and not word.startswith(f"{folder.parent}/")
        ]
        environment[variable] = ":".join([value, *others])

    if _glibc() >= AUDITED_SINCE:
        put_first("LD_AUDIT", str(folder / AUDITOR))
    else:
        put_first("LD_PRELOAD", str(folder / "libcuda.so.1"))
        put_first("LD_LIBRARY_PATH", str(folder))
    return environment
