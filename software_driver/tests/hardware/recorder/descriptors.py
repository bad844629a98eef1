"""What goes into the descriptor of a green context, and which contexts share SMs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .gpu import (
    CREATE_DEFAULT_STREAM,
    SM,
    Gpu,
    Green,
    Refused,
    queried,
)
from .notes import Note


def record_descriptors(gpu: Gpu, note: Note) -> Any:
    """What may stand in one descriptor: the context's resource as queried, and the SM ids that a kernel sees in it."""
    eights, again = gpu.groups(8), gpu.groups(8)
    sixteens = gpu.groups(16)
    rest = gpu.remainder(8)

    def with_remainder(minimum: int, asked: int) -> list[Any]:
        code, groups, remainder = gpu.split(gpu.whole, minimum, 0, asked)
        if code != 0:
            raise Refused("cuDevSmResourceSplitByCount", code)
        return [*groups, remainder]

    cases: dict[str, Callable[[], list[Any]]] = {
        "device": lambda: [gpu.whole],
        "device twice": lambda: [gpu.whole, gpu.whole],
        "one group": lambda: [eights[0]],
        "two groups": lambda: [eights[0], eights[1]],
        "two groups, higher first": lambda: [eights[1], eights[0]],
        "groups 0, 3 and 7": lambda: [eights[0], eights[3], eights[7]],
        "all groups": lambda: eights,
        "all groups and the remainder": lambda: [*eights, rest],
        "a group and its remainder": lambda: [eights[0], rest],
        "remainder first, then a group": lambda: [rest, eights[0]],
        "the remainder": lambda: [rest],
        "the remainder twice": lambda: [rest, rest],
        "the same group twice": lambda: [eights[0], eights[0]],
        "the same group of two equal splits": lambda: [eights[0], again[0]],
        "different groups of two equal splits": lambda: [eights[0], again[1]],
        "8 and an overlapping 16 of another split": lambda: [eights[0], sixteens[0]],
        "8 and a disjoint 16 of another split": lambda: [eights[0], sixteens[2]],
        "8 and the last 16 of another split": lambda: [eights[0], sixteens[-1]],
        "group of 8 and the device": lambda: [eights[0], gpu.whole],
        "8 of flags 0 and 8 of flags 2": lambda: [eights[0], gpu.groups(8, 2)[1]],
        "8 of flags 0 and 2 of flags 1": lambda: [eights[0], gpu.groups(2, 1)[-1]],
        "two of flags 1": lambda: gpu.groups(2, 1)[:2],
        "two of flags 1, apart": lambda: [gpu.groups(2, 1)[index] for index in (0, 5)],
        "one of 8 asked once and its remainder": lambda: with_remainder(8, 1),
        "groups of 64 and their remainder": lambda: with_remainder(64, gpu.sm_count),
        "an INVALID resource": lambda: [gpu.driver.module.CUdevResource()],
        "a group and an INVALID resource": lambda: [eights[0], gpu.driver.module.CUdevResource()],
        "a remainder of no SMs": lambda: with_remainder(gpu.sm_count, 1)[-1:],
        "nothing": list,
    }

    def try_one(make: Callable[[], list[Any]]) -> Any:
        with Green(gpu, make()) as green:
            return {
                "sm": queried(gpu, "cuGreenCtxGetDevResource", green.handle),
                "ctx_sm": queried(gpu, "cuCtxGetDevResource", green.ctx),
                "smids": gpu.smids(green),
            }

    for name, make in cases.items():
        note(name, lambda make=make: try_one(make))

    def composed_of_query() -> Any:
        """A group of an inner split together with one of the outer split, and two inner groups."""
        with Green(gpu, [eights[0], eights[1]]) as outer:
            held = gpu.driver.must("cuGreenCtxGetDevResource", outer.handle, gpu.resource_type(SM))
            inner = gpu.groups(8, 0, 2, held)
            return {
                "two inner groups": gpu.smids_of(inner),
                "an inner and an outer group": gpu.smids_of([inner[0], eights[5]]),
                "what the query returned": gpu.smids_of([held]),
                "what the query returned, twice": gpu.smids_of([held, held]),
            }

    def two_live() -> Any:
        """Two contexts over the same group at once: what each of them sees."""
        with Green(gpu, [eights[0]]) as first, Green(gpu, [eights[0]]) as second:
            return {"first": gpu.smids(first), "second": gpu.smids(second)}

    def descriptor_twice() -> Any:
        driver = gpu.driver
        descriptor = driver.must("cuDevResourceGenerateDesc", [eights[0]], 1)
        created = [driver.call("cuGreenCtxCreate", descriptor, gpu.device, CREATE_DEFAULT_STREAM) for _ in range(2)]
        codes = [code for code, _ in created]
        for code, handle in created:
            if code == 0:
                driver.call("cuGreenCtxDestroy", handle)
        codes.append(driver.code("cuGreenCtxCreate", descriptor, gpu.device, CREATE_DEFAULT_STREAM))
        return codes

    note("groups of what a context holds", composed_of_query)
    note("two live contexts over one group", two_live)
    note("one descriptor for two contexts, then after both are destroyed", descriptor_twice)
    return note.answers
