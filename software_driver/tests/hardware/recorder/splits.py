"""What splits give: counts, the SMs of each part, and parts of parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .gpu import (
    SM,
    STREAM_NON_BLOCKING,
    THREADS,
    Code,
    Gpu,
    Green,
    clusters_seen,
    count_of,
    fields,
    parents,
    queried,
)
from .notes import Note


def record_device(gpu: Gpu, note: Note) -> Any:
    name = gpu.driver.must("cuDeviceGetName", 256, gpu.device)
    priorities = gpu.driver.call("cuCtxGetStreamPriorityRange")
    attributes = (
        "MULTIPROCESSOR_COUNT",
        "MAX_THREADS_PER_MULTIPROCESSOR",
        "MAX_BLOCKS_PER_MULTIPROCESSOR",
        "MAX_THREADS_PER_BLOCK",
        "WARP_SIZE",
        "COOPERATIVE_LAUNCH",
        "CLUSTER_LAUNCH",
        "INTEGRATED",
        "COMPUTE_MODE",
        "ASYNC_ENGINE_COUNT",
        "STREAM_PRIORITIES_SUPPORTED",
        "MPS_ENABLED",
    )
    return {
        "name": bytes(name).split(b"\0")[0].decode(),
        "compute_capability": list(gpu.cc),
        "driver_version": gpu.version,
        "sm": fields(gpu.whole),
        "context_sm": {"cuCtxGetDevResource of the primary context": queried(gpu, "cuCtxGetDevResource", gpu.primary)},
        "stream_priorities": list(priorities[1]) if priorities[0] == 0 else {"code": priorities[0]},
        "attributes": {attribute: gpu.attribute(attribute) for attribute in attributes},
    }


def record_split_by_count(gpu: Gpu, note: Note) -> Any:
    """A row: [minCount, {asked: [groups, SMs in each, SMs in the remainder]}], or the code that they all gave."""
    asked = sorted({1, 2, 3, 4, 7, 16, 64, gpu.sm_count})
    answers: dict[str, Any] = {}
    for flags in range(4):
        rows: list[Any] = []
        for minimum in range(gpu.sm_count + 2):
            row = {str(number): gpu.split_row(gpu.whole, minimum, flags, number) for number in asked}
            codes = list(row.values())
            same = not isinstance(codes[0], list) and all(code == codes[0] for code in codes)
            rows.append([minimum, codes[0] if same else row])
        answers[f"flags={flags}"] = rows
    return answers


def record_split_count_only(gpu: Gpu, note: Note) -> Any:
    """[minCount, groups that the driver would make], or [minCount, {"code": n}]: the call without a result array."""
    answers: dict[str, Any] = {}
    for flags in range(4):
        rows: list[Any] = []
        for minimum in range(gpu.sm_count + 2):
            code, value = gpu.driver.call("cuDevSmResourceSplitByCount", 0, gpu.whole, flags, minimum)
            rows.append([minimum, value[1] if code == 0 else {"code": code}])
        answers[f"flags={flags}"] = rows
    return answers


SMIDS_OF = {0: (8, 16, 24, 32, 40, 48, 56, 64, 72, 96, 120, 128), 1: (2, 4, 10, 16, 64), 2: (8, 16, 32, 64, 128)}


def record_smids(gpu: Gpu, note: Note) -> Any:
    """A row: [minCount, [SM ids of each group], SM ids of the remainder], or [minCount, code]."""
    answers: dict[str, Any] = {"whole": gpu.smids_on(0, gpu.primary, 4 * gpu.sm_count)}
    for flags, minimums in SMIDS_OF.items():
        rows: list[Any] = []
        for minimum in minimums:
            code, groups, remainder = gpu.split(gpu.whole, minimum, flags, gpu.sm_count)
            if code != 0:
                rows.append([minimum, code])
                continue
            if gpu.quick:
                groups = groups[:4]
            seen = [gpu.smids_of([group]) for group in groups]
            rows.append([minimum, seen, gpu.smids_of([remainder]) if count_of(remainder) else []])
        answers[f"flags={flags}"] = rows
    return answers


def joined(sets: Iterable[Iterable[int]]) -> list[list[int]]:
    """The connected components of sets that share members, each sorted, in the order of their lowest member."""
    parent: dict[int, int] = {}

    def root(member: int) -> int:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for members in sets:
        first, *rest = members
        parent.setdefault(first, first)
        for member in rest:
            parent.setdefault(member, member)
            parent[root(member)] = root(first)
    components: dict[int, list[int]] = {}
    for member in sorted(parent):
        components.setdefault(root(member), []).append(member)
    return sorted(components.values())


def record_layout(gpu: Gpu, note: Note) -> Any:
    if gpu.cc < (9, 0):
        return {
            "how": "no thread-block clusters below compute capability 9.0: nothing says which cluster an SM sits in"
        }
    stream = gpu.driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    codes: dict[str, Code] = {}
    together: list[list[int]] = []
    pairs: set[tuple[int, ...]] = set()
    for cluster in (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16):
        for launch in range(6 if gpu.quick else 20):
            # Grids of different sizes begin at different places, so that the SMs at the edge of a cluster are used too.
            blocks = (1 + launch % 4) * gpu.sm_count
            threads = THREADS if launch % 2 == 0 else 512
            code, seen = clusters_seen(gpu, stream, cluster, threads, blocks)
            codes[str(cluster)] = code
            if code != 0:
                break
            together += seen
            if cluster == 2:
                pairs.update(tuple(sorted(set(members))) for members in seen if len(set(members)) == 2)
    gpu.driver.call("cuStreamDestroy", stream)
    components = joined(together)
    return {
        "how": "the blocks of one thread-block cluster run inside one GPC: SM ids that met in a cluster, joined over"
        " many launches of clusters of 2 to 16, are one GPC; GPCs in the order of their lowest SM id",
        "clusters_launched": codes,
        "sms_per_gpc": [len(component) for component in components],
        "gpcs": components,
        "sms_never_seen": sorted(set(range(gpu.sm_count)) - {smid for component in components for smid in component}),
        "measured": {"pairs_seen_in_clusters_of_2": [list(pair) for pair in sorted(pairs)]},
    }


def record_two_step(gpu: Gpu, note: Note) -> Any:
    """Splits of what a green context's query returns. A row: [minCount, [groups, SMs in each, remainder]] or a code."""

    def of_parent(resources: list[Any]) -> Any:
        with Green(gpu, resources) as green:
            answer: dict[str, Any] = {
                "cuGreenCtxGetDevResource": queried(gpu, "cuGreenCtxGetDevResource", green.handle),
                "cuCtxGetDevResource": queried(gpu, "cuCtxGetDevResource", green.ctx),
                "smids": gpu.smids(green),
            }
            code, held = gpu.driver.call("cuGreenCtxGetDevResource", green.handle, gpu.resource_type(SM))
            if code != 0:
                return answer
            size = count_of(held)
            for flags in range(3):
                rows = [[least, gpu.split_row(held, least, flags, size)] for least in range(2, size + 1)]
                answer[f"split flags={flags}"] = rows
            for least, flags in ((8, 0), (16, 0), (2, 1), (8, 2)):
                code, groups, remainder = gpu.split(held, least, flags, size)
                if code == 0:
                    inner = [gpu.smids_of([group]) for group in groups[: 2 if gpu.quick else 6]]
                    rest = gpu.smids_of([remainder]) if count_of(remainder) else []
                    answer[f"smids of min={least} flags={flags}"] = [inner, rest]
            return answer

    for name, resources in parents(gpu).items():
        note(name, lambda resources=resources: of_parent(resources()))
    return note.answers
