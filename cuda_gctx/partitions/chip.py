"""The SMs of each GPC of a device, detected by where thread-block clusters run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cuda_gctx._core.extension import (
    CUDAError,
    Device,
    Stream,
    before_driver_closes,
    driver_and_device,
    max_cluster_size,
    run_probe,
)

__all__ = ["chip_clusters", "known_clusters"]

Clusters = tuple[tuple[int, ...], ...]

PROBE_THREADS = 1024
# Short, but longer than it takes to hand out the blocks of one launch, so that these spread.
SPIN_NS = 20_000
# Cluster sizes: what fills a GPC, what does not divide it, and what runs in the smallest one.
SIZES = (16, 12, 10, 8, 6, 4, 3, 2)
# Grids of different sizes begin at different places, so that the SMs at the edge of a GPC are seen too.
GRIDS = (2, 1, 3, 4)
LEAST_PASSES = 3

_known: dict[tuple[int, int], Clusters] = {}


def _forget_driver(driver: int) -> None:
    for key in [key for key in _known if key[0] == driver]:
        _known.pop(key, None)


before_driver_closes(_forget_driver)


def joined(sets: Iterable[Iterable[int]]) -> Clusters:
    """Merge the sets that share a member. Each is sorted, and the sets are in the order of their lowest members."""
    groups: list[set[int]] = []
    for members in map(set, sets):
        apart = [group for group in groups if not group & members]
        groups = [*apart, members.union(*(group for group in groups if group & members))]
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def _sightings(stream: Stream, blocks: int, size: int, timeout_ns: int) -> Iterator[set[int]]:
    """The SMs on which each thread-block cluster of one launch ran."""
    whole = blocks // size * size
    [seen] = run_probe([stream], [whole], SPIN_NS, timeout_ns, size)
    if len(seen) == whole:
        for first in range(0, whole, size):
            yield {sm for sm, _, _ in seen[first : first + size]}


def _look(device: Device, timeout_ns: int) -> Clusters:
    """Launch thread-block clusters on the whole device until further clusters connect no more SMs."""
    clusters: Clusters = ()
    with device.create_stream() as stream:
        largest = max_cluster_size(stream, 0, PROBE_THREADS, 0)
        if largest == 1:
            return ()
        for number, grid in enumerate(GRIDS, 1):
            before = clusters
            for size in SIZES:
                if size <= largest:
                    clusters = joined([*clusters, *_sightings(stream, grid * device.sm_count, size, timeout_ns)])
            if clusters == before and number >= LEAST_PASSES:
                break
    return clusters


def known_clusters(device: Device) -> Clusters:
    """The previous result of `chip_clusters`; empty if it has not been called, or found nothing."""
    return _known.get(driver_and_device(device.resources.sm), ())


def chip_clusters(device: Device, timeout_ns: int) -> Clusters:
    """The SM ids of each GPC; empty if unknown, such as below compute capability 9.0.

    A thread-block cluster runs inside one GPC, so the SMs of one cluster belong together. The measurement runs once for
    each device, and takes about ten milliseconds of short kernels on all of its SMs.
    """
    key = driver_and_device(device.resources.sm)
    if key not in _known:
        try:
            clusters = _look(device, timeout_ns)
        except CUDAError:
            clusters = ()  # refused, as it would be the next time
        except RuntimeError:
            return ()  # other work keeps the SMs: the next call may see more
        if clusters and sum(map(len, clusters)) < device.sm_count:
            return clusters
        _known[key] = clusters
    return _known[key]
