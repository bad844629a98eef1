"""What can run at once in a partition."""

from __future__ import annotations

from typing import Any

from .gpu import (
    STREAM_NON_BLOCKING,
    THREADS,
    Code,
    Gpu,
    Green,
    Refused,
    clusters_seen,
    green_count,
    launch_config,
    parents,
)
from .notes import Note


def record_limits(gpu: Gpu, note: Note) -> Any:
    driver = gpu.driver

    def occupancy(name: str, kernel: str, stream: Any, threads: int, cluster: int) -> Any:
        config = launch_config(gpu, stream, max(cluster, 1) * gpu.sm_count, threads, cluster)
        code, value = driver.call(name, gpu.kernel(kernel), config)
        return value if code == 0 else {"code": code}

    def cooperative(stream: Any, threads: int, blocks: int) -> Code:
        code = driver.code(
            "cuLaunchCooperativeKernel",
            gpu.kernel("record_smids"), blocks, 1, 1, threads, 1, 1, 0, stream, gpu.arguments(1000),
        )  # fmt: skip
        return code or driver.code("cuStreamSynchronize", stream)

    def of_partition(ctx: Any, stream: Any, size: Any) -> Any:
        driver.must("cuCtxSetCurrent", ctx)
        try:
            answer: dict[str, Any] = {"sms": size, "MULTIPROCESSOR_COUNT": gpu.attribute("MULTIPROCESSOR_COUNT")}
            for threads in (128, 1024):
                function = gpu.kernel("record_smids")
                code, per_sm = driver.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, 0)
                answer[f"blocks per SM, {threads} threads"] = per_sm if code == 0 else {"code": code}
                if code == 0 and isinstance(size, int):
                    fits = per_sm * size
                    answer[f"cooperative, {threads} threads"] = {
                        "blocks that fit": fits,
                        "that many": cooperative(stream, threads, fits),
                        "one more": cooperative(stream, threads, fits + 1),
                    }
            if gpu.cc >= (9, 0):
                for threads in (128, 1024):
                    for kernel, kind in (("record_smids", "portable"), ("record_blocks", "any size")):
                        largest = occupancy("cuOccupancyMaxPotentialClusterSize", kernel, stream, threads, 0)
                        answer[f"max cluster, {kind}, {threads} threads"] = largest
                    answer[f"active clusters, {threads} threads"] = {
                        str(cluster): occupancy(
                            "cuOccupancyMaxActiveClusters", "record_blocks", stream, threads, cluster
                        )
                        for cluster in (1, 2, 4, 8, 16)
                    }
                answer["launch of clusters"] = {
                    str(cluster): clusters_seen(gpu, stream, cluster, THREADS, 2 * cluster)[0]
                    for cluster in (2, 4, 8, 16)
                }
            return answer
        finally:
            driver.call("cuCtxSetCurrent", gpu.primary)

    def of_resources(resources: list[Any]) -> Any:
        with Green(gpu, resources) as green:
            return of_partition(green.ctx, green.stream, green_count(green))

    stream = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    note("primary", lambda: of_partition(gpu.primary, stream, gpu.sm_count))
    for name, resources in parents(gpu).items():
        note(name, lambda resources=resources: of_resources(resources()))
    if gpu.cc >= (9, 0):
        rows: list[Any] = []
        for minimum in range(8, gpu.sm_count + 1, 8):
            for flags in (0, 1, 2):
                try:
                    with Green(gpu, gpu.groups(minimum, flags)[:1]) as green:
                        row = [
                            occupancy("cuOccupancyMaxPotentialClusterSize", "record_blocks", green.stream, 128, 0),
                            *(
                                occupancy("cuOccupancyMaxActiveClusters", "record_blocks", green.stream, 128, cluster)
                                for cluster in (2, 4, 8, 16)
                            ),
                        ]
                        rows.append([minimum, flags, green_count(green), row])
                except Refused as refused:
                    rows.append([minimum, flags, refused.answer["code"]])
        # A row: [minCount, flags, SMs, [max cluster size, active clusters of 2, 4, 8, 16]] of the first group.
        note.answers["clusters by size"] = rows
    return note.answers
