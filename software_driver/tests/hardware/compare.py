"""Lists where the answers of the software driver differ from a recording of a real driver.

    python tests/hardware/compare.py CARD-driver-MAJOR.MINOR.json

Runs the recorder on the software driver, with the card and the driver that the name of the file says, and prints every
answer that differs, section by section. Needs the package and cuda-bindings. The exit code is 0 if the answers are the
same apart from the known differences, else 1. Times and amounts of memory are not compared.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cuda_software_driver as sim

FOLDER = Path(__file__).resolve().parent
# What says when and with what was recorded, and not what the driver answers.
ASIDE = {"_what", "format", "recorded", "absent"}
# Sections of several items, each of which is a process of its own.
GROUPS = {"misuse", "graph_contexts", "ends"}
# Features that the software driver says it lacks, by why: who asks is told so, and who does not is refused.
LACKS = {
    "nothing outside of the simulated machine reaches its memory": (
        *("DMA_BUF_SUPPORTED", "HANDLE_TYPE_FABRIC_SUPPORTED", "MULTICAST_SUPPORTED"),
        *("GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS", "GPU_DIRECT_RDMA_SUPPORTED", "GPU_DIRECT_RDMA_WRITES_ORDERING"),
        *("GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED", "TIMELINE_SEMAPHORE_INTEROP_SUPPORTED"),
    ),
    "no kernel is executed that could use it": (
        *("COOPERATIVE_MULTI_DEVICE_LAUNCH", "MEM_SYNC_DOMAIN_COUNT", "UNIFIED_FUNCTION_POINTERS"),
    ),
    "caches and what is in them have no part in the times that are registered": (
        *("GENERIC_COMPRESSION_SUPPORTED", "MAX_ACCESS_POLICY_WINDOW_SIZE", "MAX_PERSISTING_L2_CACHE_SIZE"),
    ),
    "an array is one piece of memory": ("DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED", "SPARSE_CUDA_ARRAY_SUPPORTED"),
    "virtual memory is that of devices; the host's own is pinned": (
        *("HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"),
    ),
    "pools are of one process; cuMemCreate is for sharing": ("MEMPOOL_SUPPORTED_HANDLE_TYPES",),
}
SENTENCE_OF_MODULES = (
    "104 cuCtxDestroy_v2: Modules of the context go with it and say so, and so do their functions (recorded)."
)
# Answers that the software driver does not give, and why.
KNOWN_DIFFERENCES = {
    **{f"attributes/{name}": why for why, names in LACKS.items() for name in names},
    "events/a graph whose context is destroyed before the replay": "the real driver ends the process with SIGSEGV; "
    "the software driver answers CONTEXT_IS_DESTROYED",
    **{
        f"graph_contexts.cooperative/{what}": "a card takes a cooperative grid that is too large, and never ends it; "
        "the software driver refuses it"
        for what in ("instantiated/0", "launched", "waited for", "!ended", "!output")
    },
    **{
        f"ends.graph/a graph, {what} destroyed, wait for cuMemFree of other memory": "a card does not wait for "
        "what the primary context misses; the software driver waits for all of the device"
        for what in ("nothing", "the stream", "the context", "the stream and the context")
    },
    f"sentences/{SENTENCE_OF_MODULES}": "both refuse it: a card may have forgotten a module whose context is gone",
    **{
        f"codes/{what}": "both refuse it: a card says of streams of a context that is gone what is left of them"
        for what in (
            "cuStreamQuery after the context is destroyed",
            "cuStreamGetId after the context is destroyed",
            "cuStreamDestroy_v2 after the context is destroyed",
            "cuStreamQuery after the primary context is released",
            "cuStreamDestroy_v2 after the primary context is released",
        )
    },
    **{
        f"codes/{what} after the context is destroyed": "both refuse it: its context is gone, or there is "
        "no such module, which differs between runs of one card"
        for what in ("cuModuleUnload", "cuModuleGetFunction", "cuModuleGetGlobal_v2")
    },
    "events/!ended": "how that process ended",
    "events/!output": "how that process ended",
}

# Functions of whose refusals a capture takes more harm here, and why.
CONTRACT_DIFFERENCES = dict.fromkeys(
    ("cuIpcCloseMemHandle", "cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", "cuMemUnmap"),
    "a card looks at an address or a handle that is wrong before it looks for captures",
)
SIGNALS = ("SIGSEGV", "SIGALRM")
# A call cannot be captured, and a capture is invalid already.
OF_CAPTURES = {900, 901}


def is_refusal(answer: Any) -> bool:
    """Whether a code of CUresult, or one with what became of a capture, is an error."""
    code = answer[0] if isinstance(answer, list) else answer
    return isinstance(code, int) and code != 0


def contract_reason(function: str, real: Mapping[str, Any], question: str, model: Any) -> str | None:
    """Why the answer to a question about the contract of a function may differ; None if it may not."""
    answer = real[question]
    if answer in SIGNALS:
        return "a card ends or blocks the process; the software driver answers"
    if isinstance(answer, str) and isinstance(model, str):
        return "the question could not be asked to its end"
    if is_refusal(answer) and is_refusal(model) and isinstance(answer, int):
        return "both refuse it: which of several reasons is said first differs"
    if is_refusal(answer) and is_refusal(model) and answer[1] == model[1] and {answer[0], model[0]} != OF_CAPTURES:
        return "both refuse it, and the capture is as it was"
    return CONTRACT_DIFFERENCES.get(function)


def contract_differences(real: Any, model: Any) -> Iterator[tuple[str, Any, Any]]:
    for function in sorted({*real, *model}):
        answers, others = real.get(function, {}), model.get(function, {})
        for question, one in answers.items():  # a card was asked those that there were
            other = others.get(question, "-")
            if one != other and contract_reason(function, answers, question, other) is None:
                yield f"contract/{function}/{question}", one, other


@functools.cache
def recorded(path: Path) -> Any:
    return json.loads(path.read_text())


def sections(path: Path) -> list[str]:
    found = []
    for name, answers in recorded(path).items():
        if name not in ASIDE:
            found += [f"{name}.{item}" for item in answers] if name in GROUPS else [name]
    return sorted(found)


@functools.cache
def simulated(path: Path, names: tuple[str, ...]) -> Any:
    """What the recorder writes of some sections on the software driver, with the card and the driver of a recording."""
    major, minor = divmod(recorded(path)["device"]["driver_version"] // 10, 100)
    card = path.stem.partition("-")[0]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, path.name)
        subprocess.run(
            [sys.executable, str(FOLDER / "record.py"), "--out", str(out), *(f"--only={name}" for name in names)],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": sim.library_folder(),
                "CUDA_SOFTWARE_DRIVER_MACHINE": f"{card}@{major}.{minor}",
            },
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=300,
        )
        return json.loads(out.read_text())


def differences(real: Any, model: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Every place where two answers differ; what was measured is not compared."""
    if isinstance(real, dict) and isinstance(model, dict):
        for key in [*real, *(key for key in model if key not in real)]:
            if key != "measured":
                yield from differences(real.get(key, "-"), model.get(key, "-"), f"{place}/{key}")
    elif isinstance(real, list) and isinstance(model, list) and len(real) == len(model):
        for index, (one, other) in enumerate(zip(real, model, strict=True)):
            yield from differences(one, other, f"{place}/{index}")
    elif real != model:
        yield place, real, model


def answers_of(recording: Any, section: str) -> Any:
    for name in section.split("."):
        recording = recording[name]
    if section != "device":
        return recording
    return {key: value for key, value in recording.items() if key != "name"}


def differs_by_a_crash(place: str, real: Any) -> bool:
    """Questions about single functions, at which a card ends the process; the software driver answers."""
    return place.startswith("codes/") and real in SIGNALS


def all_differences(path: Path, section: str, replay: Any) -> list[tuple[str, Any, Any]]:
    """What differs in a section between a recording and what the software driver answered, known or not."""
    real, model = answers_of(recorded(path), section), answers_of(replay, section)
    if section == "sentences":  # a card was asked those that there were
        model = {sentence: model.get(sentence, "-") for sentence in real}
    return list(contract_differences(real, model) if section == "contract" else differences(real, model, section))


def differences_of(path: Path, section: str, replay: Any) -> list[str]:
    """What differs and is not known, in words."""
    return [
        f"{place}\n  recorded  {real}\n  simulated {model}"
        for place, real, model in all_differences(path, section, replay)
        if place not in KNOWN_DIFFERENCES and not differs_by_a_crash(place, real)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path)
    path = parser.parse_args().recording
    card = path.stem.partition("-")[0]
    known = [card["key"] for card in sim.cards()]
    if card not in known:
        parser.error(f"the name of the file begins with the card, one of {', '.join(known)}; not {card}")
    total = 0
    replay = simulated(path, tuple(sections(path)))
    for section in sections(path):
        if section != "measured" and (found := differences_of(path, section, replay)):
            print(f"{section}:", *found, sep="\n")
            total += len(found)
    print(f"{total} answers differ" if total else "the answers are the same")
    return int(total > 0)


if __name__ == "__main__":
    raise SystemExit(main())
