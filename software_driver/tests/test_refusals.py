"""What the driver's header refuses, the software driver refuses too, unless hardware was seen to accept it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cuda_software_driver import session

from .raw import RESOURCE_BYTES, SM, Raw

OK, INVALID_VALUE, INVALID_DEVICE, NOT_PERMITTED, NOT_SUPPORTED = 0, 1, 101, 800, 801
INVALID_CLUSTER_SIZE, CONFIGURATION, DESTROYED = 912, 915, 709
WORKQUEUE = 10000
NON_BLOCKING = 1
KIB = 1024
PTX = b".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry work() { ret; }\n\0"


Start = Callable[..., Raw]


@pytest.fixture
def driver() -> Iterator[Start]:
    """Start a machine with the primary contexts of its devices retained, the first one current."""
    opened: list[Any] = []

    def start(version: str, card: str = "h200", devices: int = 1) -> Raw:
        manager = session(card, version, devices, check=False)
        manager.__enter__()
        opened.append(manager)
        raw = Raw()
        context = ctypes.c_void_p()
        for device in reversed(range(devices)):
            raw.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        raw.call("cuCtxSetCurrent", context)
        return raw

    yield start
    for manager in reversed(opened):
        manager.__exit__(None, None, None)


def resource(raw: Raw, kind: int = SM, device: int = 0) -> Any:
    found = ctypes.create_string_buffer(RESOURCE_BYTES)
    raw.call("cuDeviceGetDevResource", device, found, kind)
    return found


def descriptor(raw: Raw, *resources: Any) -> tuple[int, ctypes.c_void_p]:
    made = ctypes.c_void_p()
    joined = ctypes.create_string_buffer(b"".join(one.raw[:RESOURCE_BYTES] for one in resources))
    return raw.code("cuDevResourceGenerateDesc", ctypes.byref(made), joined, len(resources)), made


def context_over(raw: Raw, made: ctypes.c_void_p, device: int) -> tuple[int, ctypes.c_void_p]:
    context = ctypes.c_void_p()
    return raw.code("cuGreenCtxCreate", ctypes.byref(context), made, device, 1), context


def workqueue_of(raw: Raw, device: int) -> Any:
    context = ctypes.c_void_p()
    raw.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    found = ctypes.create_string_buffer(RESOURCE_BYTES)
    raw.call("cuCtxGetDevResource", context, found, WORKQUEUE)
    return found


@pytest.mark.parametrize("first", ["SMs", "workqueue"])
@pytest.mark.parametrize(("sms_of", "queue_of", "answer"), [(0, 1, CONFIGURATION), (1, 0, CONFIGURATION), (1, 1, OK)])
def test_all_resources_of_a_descriptor_are_of_one_device(
    driver: Start, first: str, sms_of: int, queue_of: int, answer: int
) -> None:
    raw = driver("13.1", devices=2)
    pieces = [resource(raw, device=sms_of), workqueue_of(raw, queue_of)]
    if first == "workqueue":
        pieces.reverse()
    code, made = descriptor(raw, *pieces)
    assert code == answer
    if code == OK:
        assert context_over(raw, made, 0)[0] == INVALID_DEVICE
        assert context_over(raw, made, 1)[0] == OK


def structured(raw: Raw, *groups: tuple[int, ...]) -> tuple[list[Any], Any]:
    """Groups of one structured split, each of (count, co-scheduled, preferred, flags, domain), and what is left."""
    made = ctypes.create_string_buffer(RESOURCE_BYTES * len(groups))
    rest = ctypes.create_string_buffer(RESOURCE_BYTES)
    words = [word for group in groups for word in (*group, *[0] * (16 - len(group)))]
    raw.call("cuDevSmResourceSplit", made, len(groups), resource(raw), rest, 0, (ctypes.c_uint * len(words))(*words))
    pieces = [made.raw[i * RESOURCE_BYTES : (i + 1) * RESOURCE_BYTES] for i in range(len(groups))]
    return [ctypes.create_string_buffer(piece, RESOURCE_BYTES) for piece in pieces], rest


def by_count(raw: Raw, count: int, minimum: int) -> tuple[list[Any], Any]:
    """Groups of one split by count, and what is left."""
    made = ctypes.create_string_buffer(RESOURCE_BYTES * count)
    rest = ctypes.create_string_buffer(RESOURCE_BYTES)
    raw.call("cuDevSmResourceSplitByCount", made, ctypes.byref(ctypes.c_uint(count)), resource(raw), rest, 0, minimum)
    pieces = [made.raw[i * RESOURCE_BYTES : (i + 1) * RESOURCE_BYTES] for i in range(count)]
    return [ctypes.create_string_buffer(piece, RESOURCE_BYTES) for piece in pieces], rest


@pytest.mark.parametrize("version", ["13.1", "13.4", "13.5"])
def test_pieces_of_one_descriptor_come_from_one_split_and_are_alike(driver: Start, version: str) -> None:
    raw = driver(version)
    (a, b), _ = structured(raw, (16, 8), (16, 8))
    assert descriptor(raw, a, b)[0] == OK
    (c, d), _ = structured(raw, (16, 8), (16, 2))
    assert descriptor(raw, c, d)[0] == CONFIGURATION  # alignments 8 and 2
    assert descriptor(raw, a, c)[0] == CONFIGURATION  # two splits
    (e, f), rest = by_count(raw, 2, 16)
    assert descriptor(raw, e, f)[0] == OK
    assert descriptor(raw, e, rest)[0] == CONFIGURATION
    assert descriptor(raw, a, e)[0] == CONFIGURATION


def test_up_to_13_0_the_remainder_is_taken_in(driver: Start) -> None:
    raw = driver("13.0")
    (group, _), rest = by_count(raw, 2, 16)
    assert descriptor(raw, group, rest)[0] == OK


@pytest.mark.parametrize("version", ["13.4", "13.5"])
def test_pieces_of_one_descriptor_are_of_one_locality_domain(driver: Start, version: str) -> None:
    raw = driver(version, "b200")
    (a, b, c), _ = structured(raw, (16, 8, 8, 2, 0), (16, 8, 8, 2, 0), (16, 8, 8, 2, 1))
    assert descriptor(raw, a, b)[0] == OK
    assert descriptor(raw, a, c)[0] == CONFIGURATION


def test_an_existing_workqueue_alone_is_of_its_device(driver: Start) -> None:
    raw = driver("13.1", devices=2)
    code, made = descriptor(raw, workqueue_of(raw, 1))
    assert code == OK
    assert context_over(raw, made, 0)[0] == INVALID_DEVICE
    assert context_over(raw, made, 1)[0] == OK


@pytest.mark.parametrize("flags", [0, 1, 2])
def test_a_split_by_count_leaves_no_flags(driver: Start, flags: int) -> None:
    raw = driver("13.1")
    group, count = ctypes.create_string_buffer(RESOURCE_BYTES), ctypes.c_uint(1)
    raw.call("cuDevSmResourceSplitByCount", group, ctypes.byref(count), resource(raw), None, flags, 16)
    _, context = context_over(raw, descriptor(raw, group)[1], 0)
    found = ctypes.create_string_buffer(RESOURCE_BYTES)
    raw.call("cuGreenCtxGetDevResource", context, found, SM)
    assert int.from_bytes(found.raw[108:112], "little") == 0


def test_a_backfilled_group_says_so_in_its_context(driver: Start) -> None:
    raw = driver("13.1")
    group = ctypes.create_string_buffer(RESOURCE_BYTES)
    asked = (ctypes.c_uint * 16)(12, 0, 0, 1)
    raw.call("cuDevSmResourceSplit", group, 1, resource(raw), None, 0, asked)
    _, context = context_over(raw, descriptor(raw, group)[1], 0)
    found = ctypes.create_string_buffer(RESOURCE_BYTES)
    raw.call("cuGreenCtxGetDevResource", context, found, SM)
    assert int.from_bytes(found.raw[96:100], "little") == 12
    assert int.from_bytes(found.raw[108:112], "little") == 1


class Kernel:
    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        library = raw.handle("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
        self.handle = raw.handle("cuLibraryGetKernel", ctypes.c_void_p(library), b"work")

    def set(self, attribute: int, value: int) -> None:
        self.raw.call("cuKernelSetAttribute", attribute, value, ctypes.c_void_p(self.handle), 0)

    def launch(self, grid: tuple[int, int, int], block: tuple[int, int, int] = (32, 1, 1), shared: int = 0) -> int:
        return self.raw.code("cuLaunchKernel", ctypes.c_void_p(self.handle), *grid, *block, shared, None, None, None)

    def launch_clusters(self, grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> int:
        attribute = (ctypes.c_uint * 18)(4, 0, *cluster)
        config = (ctypes.c_uint64 * 7)()
        words = ctypes.cast(config, ctypes.POINTER(ctypes.c_uint))
        for i, value in enumerate((*grid, 32, 1, 1, 0)):
            words[i] = value
        config[4] = 0
        config[5] = ctypes.addressof(attribute)
        config[6] = 1
        return self.raw.code("cuLaunchKernelEx", config, ctypes.c_void_p(self.handle), None, None)


@pytest.fixture
def kernel(driver: Start) -> Kernel:
    return Kernel(driver("13.0"))


@pytest.mark.parametrize(
    ("grid", "block", "answer"),
    [
        ((1, 65535, 1), (1, 1, 64), OK),
        ((1, 65536, 1), (1, 1, 1), INVALID_VALUE),
        ((1, 1, 65536), (1, 1, 1), INVALID_VALUE),
        ((1, 1, 1), (1, 1, 65), INVALID_VALUE),
        ((2**31 - 1, 1, 1), (1, 1, 1), OK),
        ((2**31, 1, 1), (1, 1, 1), INVALID_VALUE),
    ],
)
def test_a_launch_keeps_to_the_limits_that_the_device_reports(
    kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int], answer: int
) -> None:
    assert kernel.launch(grid, block) == answer


def test_more_shared_memory_must_be_allowed_first(kernel: Kernel) -> None:
    assert kernel.launch((1, 1, 1), shared=48 * KIB) == OK
    assert kernel.launch((1, 1, 1), shared=200 * KIB) == INVALID_VALUE
    kernel.set(8, 227 * KIB)
    assert kernel.launch((1, 1, 1), shared=200 * KIB) == OK


def test_clusters_divide_the_grid_in_each_direction(kernel: Kernel) -> None:
    assert kernel.launch_clusters((8, 1, 1), (8, 1, 1)) == OK
    assert kernel.launch_clusters((8, 1, 1), (1, 8, 1)) == INVALID_CLUSTER_SIZE


def test_clusters_of_sixteen_must_be_allowed_first(kernel: Kernel) -> None:
    assert kernel.launch_clusters((16, 1, 1), (16, 1, 1)) == INVALID_CLUSTER_SIZE
    kernel.set(14, 1)
    assert kernel.launch_clusters((16, 1, 1), (16, 1, 1)) == OK


def test_unknown_flags_are_refused(driver: Start) -> None:
    raw = driver("13.0")
    place, memory = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
    assert raw.code("cuMemHostAlloc", ctypes.byref(place), ctypes.c_size_t(64), 0xFFFF) == INVALID_VALUE
    assert raw.code("cuMemHostRegister_v2", memory, ctypes.c_size_t(4096), 0xFFFF) == INVALID_VALUE
    graph = ctypes.c_void_p(raw.handle("cuGraphCreate", 0))
    made = ctypes.byref(ctypes.c_void_p())
    assert raw.code("cuGraphInstantiateWithFlags", made, graph, ctypes.c_uint64(0xFFFFFFFF)) == INVALID_VALUE
    assert raw.code("cuGraphInstantiateWithFlags", made, graph, ctypes.c_uint64(4)) == NOT_SUPPORTED


def test_events_for_other_processes_have_no_times(driver: Start) -> None:
    raw = driver("13.0")
    disable_timing, interprocess = 2, 4
    event = ctypes.byref(ctypes.c_void_p())
    assert raw.code("cuEventCreate", event, interprocess) == INVALID_VALUE
    assert raw.code("cuEventCreate", event, interprocess | disable_timing) == 0


def test_a_reset_ends_what_is_on_the_device(driver: Start) -> None:
    raw = driver("13.0")
    group, count = ctypes.create_string_buffer(RESOURCE_BYTES), ctypes.c_uint(1)
    raw.call("cuDevSmResourceSplitByCount", group, ctypes.byref(count), resource(raw), None, 0, 16)
    _, green = context_over(raw, descriptor(raw, group)[1], 0)
    memory = ctypes.c_uint64()
    raw.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(1 << 20))
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert raw.code("cuDevicePrimaryCtxReset_v2", 0) == NOT_PERMITTED
    raw.call("cuGreenCtxDestroy", green)
    old = raw.handle("cuDevicePrimaryCtxRetain", 0)
    raw.call("cuDevicePrimaryCtxReset_v2", 0)
    number = ctypes.c_ulonglong()
    assert raw.code("cuCtxGetId", ctypes.c_void_p(old), ctypes.byref(number)) == DESTROYED
    raw.call("cuCtxSetCurrent", ctypes.c_void_p(raw.handle("cuDevicePrimaryCtxRetain", 0)))
    raw.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert free.value == total.value
    assert raw.code("cuMemFree_v2", memory) == INVALID_VALUE


def test_after_a_reset_the_primary_context_has_its_handle_and_another_id(driver: Start) -> None:
    raw = driver("13.0")
    first = ctypes.c_void_p(raw.handle("cuDevicePrimaryCtxRetain", 0))
    number, later = ctypes.c_ulonglong(), ctypes.c_ulonglong()
    raw.call("cuCtxGetId", first, ctypes.byref(number))
    raw.call("cuCtxSetCurrent", first)
    event = ctypes.c_void_p(raw.handle("cuEventCreate", 0))
    raw.handle("cuStreamCreate", 0)
    raw.call("cuDevicePrimaryCtxReset_v2", 0)
    raw.handle("cuCtxCreate_v2", 0, 0)  # does not get the address
    again = ctypes.c_void_p(raw.handle("cuDevicePrimaryCtxRetain", 0))
    assert again.value == first.value
    raw.call("cuCtxGetId", again, ctypes.byref(later))
    assert later.value not in (0, number.value)
    for name in ("cuEventQuery", "cuEventSynchronize", "cuEventDestroy_v2"):
        assert raw.code(name, event) == DESTROYED


@pytest.mark.parametrize(("given", "limit"), [(None, 8), ("32", 32), ("100", 32)])
def test_the_number_of_connections_comes_from_the_environment(
    driver: Start, monkeypatch: pytest.MonkeyPatch, given: str | None, limit: int
) -> None:
    if given is not None:
        # As the C library sees it: the driver's own processes read it so.
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", given)
    raw = driver("13.1")
    found = resource(raw, kind=1000)
    assert int.from_bytes(found.raw[100:104], "little") == limit


def test_attributes_are_those_of_the_card() -> None:
    shared, l2, bus, clock = 81, 38, 37, 13
    seen = {}
    for card in ("h200", "h100", "a100", "l40s", "rtx4090", "b200", "vr200", "rtx5080", "thor"):
        with session(card):
            raw = Raw()
            value = ctypes.c_int()
            answers = []
            for attribute in (shared, l2, bus, clock):
                raw.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, 0)
                answers.append(value.value)
            seen[card] = tuple(answers)
    assert seen == {
        "h200": (228 * KIB, 60 << 20, 6016, 1_980_000),
        "h100": (228 * KIB, 50 << 20, 5120, 1_980_000),
        "a100": (164 * KIB, 40 << 20, 5120, 1_410_000),
        "l40s": (100 * KIB, 96 << 20, 384, 2_520_000),
        "rtx4090": (100 * KIB, 72 << 20, 384, 2_520_000),
        "b200": (228 * KIB, 126 << 20, 8192, 1_965_000),
        "vr200": (228 * KIB, 126 << 20, 16384, 2_000_000),
        "rtx5080": (100 * KIB, 64 << 20, 256, 2_617_000),
        "thor": (228 * KIB, 32 << 20, 256, 1_575_000),
    }
