"""What the software driver does differently from one driver version to the next, through the driver's own calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cuda_software_driver import library_path, session

from .raw import DEFAULT_STREAM, RESOURCE_BYTES, SM, STREAM_NON_BLOCKING, Raw, RawError

VERSIONS = [f"12.{minor}" for minor in range(3, 10)] + [f"13.{minor}" for minor in range(6)]
INVALID_VALUE, INVALID_CONTEXT, DESTROYED, NOT_SUPPORTED = 1, 201, 709, 801
INVALID_TYPE, INVALID_CONFIGURATION, DETACHED = 914, 915, 917
WORKQUEUE_CONFIG, WORKQUEUE = 1000, 10000
BACKFILL, LOCALITY = 1, 2

# The base name and the version that brought it, from docs/drivers.md's list and cuda.h.
SINCE = {
    "cuGreenCtxCreate": "12.4",
    "cuGreenCtxDestroy": "12.4",
    "cuCtxFromGreenCtx": "12.4",
    "cuDeviceGetDevResource": "12.4",
    "cuCtxGetDevResource": "12.4",
    "cuGreenCtxGetDevResource": "12.4",
    "cuDevResourceGenerateDesc": "12.4",
    "cuDevSmResourceSplitByCount": "12.4",
    "cuGreenCtxRecordEvent": "12.4",
    "cuGreenCtxWaitEvent": "12.4",
    "cuStreamGetGreenCtx": "12.4",
    "cuGreenCtxStreamCreate": "12.5",
    "cuCtxRecordEvent": "12.5",
    "cuCtxWaitEvent": "12.5",
    "cuGreenCtxGetId": "12.9",
    "cuDevSmResourceSplit": "13.1",
    "cuStreamGetDevResource": "13.1",
}
# Real functions that are not modelled.
NOT_MODELLED = [
    "cuGraphicsMapResources",
    "cuMulticastCreate",
    "cuMemMapArrayAsync",
    "cuTexRefCreate",
    "cuMemPoolExportToShareableHandle",
]


def number(version: str) -> int:
    major, minor = version.split(".")
    return 1000 * int(major) + 10 * int(minor)


class Driver(Raw):
    """Raw calls that answer their code, and a primary context that is current."""

    def __init__(self) -> None:
        super().__init__()
        self.retain()

    def address(self, name: str, version: int) -> int:
        found, status = ctypes.c_void_p(), ctypes.c_int()
        self.call(
            "cuGetProcAddress_v2", name.encode(), ctypes.byref(found), version, ctypes.c_uint64(0), ctypes.byref(status)
        )
        assert (found.value is not None) == (status.value == 0)
        return found.value or 0

    def whole(self) -> Any:
        resource = (ctypes.c_uint32 * (RESOURCE_BYTES // 4))()
        self.call("cuDeviceGetDevResource", 0, resource, SM)
        return resource

    def split_by_count(self, resource: Any, minimum: int, flags: int = 0, asked: int = 1) -> tuple[list[Any], Any]:
        groups = (ctypes.c_uint32 * (RESOURCE_BYTES // 4) * asked)()
        count, rest = ctypes.c_uint(asked), (ctypes.c_uint32 * (RESOURCE_BYTES // 4))()
        self.call("cuDevSmResourceSplitByCount", groups, ctypes.byref(count), resource, rest, flags, minimum)
        return list(groups)[: count.value], rest

    def split(self, *wanted: tuple[int, ...], dry: bool = False) -> tuple[int, list[int], list[tuple[int, int]]]:
        """The code, the sizes of the groups, and count and co-scheduling as written back."""
        params = (ctypes.c_uint32 * 16 * len(wanted))()
        for index, words in enumerate(wanted):
            params[index][: len(words)] = words
        groups = (ctypes.c_uint32 * (RESOURCE_BYTES // 4) * len(wanted))()
        rest = (ctypes.c_uint32 * (RESOURCE_BYTES // 4))()
        out = None if dry else groups
        code = self.code("cuDevSmResourceSplit", out, len(wanted), self.whole(), rest, 0, params)
        written = [(row[0], row[1]) for row in params]
        return code, [] if dry or code else [size_of(group) for group in groups], written

    def descriptor(self, *resources: Any) -> int:
        array = (ctypes.c_uint32 * (RESOURCE_BYTES // 4) * len(resources))(*resources)
        return self.handle("cuDevResourceGenerateDesc", array, len(resources))

    def green(self, *resources: Any) -> int:
        return self.handle("cuGreenCtxCreate", ctypes.c_void_p(self.descriptor(*resources)), 0, DEFAULT_STREAM)

    def queue(self, kind: int, of: int = 0) -> Any:
        resource = (ctypes.c_uint32 * (RESOURCE_BYTES // 4))()
        if of:
            self.call("cuGreenCtxGetDevResource", ctypes.c_void_p(of), resource, kind)
        else:
            self.call("cuDeviceGetDevResource", 0, resource, kind)
        return resource


def size_of(resource: Any) -> int:
    # The type stands at 0, the union at 96: an SM resource begins with its count.
    return resource[24] if resource[0] == SM else 0


@pytest.fixture
def driver() -> Iterator[Callable[..., Driver]]:
    sessions = []

    def start(version: str, card: str = "h200", **options: Any) -> Driver:
        # Unchecked: these tests misuse the driver on purpose.
        opened = session(card, driver=version, check=False, **options)
        opened.__enter__()
        sessions.append(opened)
        return Driver()

    yield start
    for opened in reversed(sessions):
        opened.__exit__(None, None, None)


Start = Callable[..., Driver]

# ---- which functions there are


@pytest.mark.parametrize("version", VERSIONS)
def test_functions_appear_with_the_version_that_brought_them(driver: Start, version: str) -> None:
    raw = driver(version)
    reported = ctypes.c_int()
    raw.call("cuDriverGetVersion", ctypes.byref(reported))
    assert reported.value == number(version)
    for name, since in SINCE.items():
        there = number(version) >= number(since)
        assert bool(raw.address(name, reported.value)) == there, name
        if not there:
            # The symbol is exported all the same, as a newer library would, and never pretends to work.
            assert raw.code(name, *[None] * 6) == NOT_SUPPORTED
        elif number(since) > 12030:
            assert not raw.address(name, number(since) - 10), name
    assert (
        raw.code("cuGetProcAddress_v2", b"cuInit", ctypes.byref(ctypes.c_void_p()), reported.value + 10, 0, None)
        == INVALID_VALUE
    )


@pytest.mark.parametrize("version", ["12.3", "13.0", "13.5"])
def test_what_is_not_modelled_is_there_and_not_supported(driver: Start, version: str) -> None:
    raw = driver(version)
    library = ctypes.CDLL(library_path())
    for name in NOT_MODELLED:
        assert raw.address(name, number(version))
        assert getattr(library, name)() == NOT_SUPPORTED


def test_of_two_forms_of_a_function_the_version_asked_for_chooses(driver: Start) -> None:
    raw = driver("13.0")
    assert raw.address("cuStreamGetCtx", 9020) != raw.address("cuStreamGetCtx", 12050)
    assert raw.address("cuEventElapsedTime", 12070) != raw.address("cuEventElapsedTime", 12080)


@pytest.mark.parametrize(
    ("version", "answer"), [("12.5", NOT_SUPPORTED), ("12.9", NOT_SUPPORTED), ("13.0", 0), ("13.5", 0)]
)
def test_the_first_form_of_stream_get_ctx_knows_no_green_streams_before_13_0(
    driver: Start, version: str, answer: int
) -> None:
    raw = driver(version)
    green = raw.green(raw.split_by_count(raw.whole(), 8)[0][0])
    stream = raw.handle("cuGreenCtxStreamCreate", ctypes.c_void_p(green), STREAM_NON_BLOCKING, 0)
    pushed = raw.create_stream(raw.handle("cuCtxFromGreenCtx", ctypes.c_void_p(green)))
    context = ctypes.c_void_p()
    assert raw.code("cuStreamGetCtx", ctypes.c_void_p(stream), ctypes.byref(context)) == answer
    assert raw.code("cuStreamGetCtx", ctypes.c_void_p(pushed), ctypes.byref(context)) == 0


# ---- splitting by count


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_the_split_by_count_is_the_same_on_every_driver(driver: Start, version: str) -> None:
    raw = driver(version)
    groups, rest = raw.split_by_count(raw.whole(), 10, asked=132)
    assert ([size_of(group) for group in groups], size_of(rest)) == ([16] * 8, 4)
    groups, rest = raw.split_by_count(raw.whole(), 10, flags=1)
    assert ([size_of(group) for group in groups], size_of(rest)) == ([10], 122)
    with pytest.raises(RawError, match=r" 1$"):
        raw.split_by_count(raw.whole(), 8, flags=3)
    with pytest.raises(RawError, match=str(INVALID_CONFIGURATION)):
        raw.split_by_count(raw.whole(), 133)
    with pytest.raises(RawError, match=str(INVALID_CONFIGURATION)):
        raw.split_by_count(groups[0], 2, flags=1)


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_groups_report_their_alignment_from_13_1_on(driver: Start, version: str) -> None:
    raw = driver(version)
    (group,), _ = raw.split_by_count(raw.whole(), 8)
    assert list(group[25:27]) == ([8, 8] if number(version) >= 13010 else [0, 0])


# ---- the structured split


@pytest.mark.parametrize("version", ["13.1", "13.2", "13.3", "13.4", "13.5"])
def test_documented_splits_are_served(driver: Start, version: str) -> None:
    raw = driver(version)
    assert raw.split((8,), (24,), (64,))[:2] == (0, [8, 24, 64])
    assert raw.split((16, 2, 2))[:2] == (0, [16])
    assert raw.split((16, 2, 2), (0, 2, 2, BACKFILL))[:2] == (0, [16, 116])
    assert raw.split((28, 4, 4), (32, 4, 4))[:2] == (0, [28, 32])
    assert raw.split((0, 8, 8))[:2] == (0, [120])
    assert raw.split((30, 8, 0, BACKFILL))[:2] == (0, [30])
    assert raw.split((0, 2, 2, BACKFILL))[:2] == (0, [132])
    # Served in the order of the array, each from what is left.
    assert raw.split((0, 8), (0, 2))[:2] == (0, [120, 12])
    for refused in [(7, 2), (16, 3), (34, 34), (20, 8), (4096, 2)]:
        assert raw.split(refused)[0] == INVALID_CONFIGURATION, refused
    assert raw.split((16, 0, 0, 128))[0] == INVALID_VALUE


@pytest.mark.parametrize("version", ["13.1", "13.2", "13.3", "13.4", "13.5"])
def test_a_coscheduling_of_zero_means_the_alignment_up_to_13_3(driver: Start, version: str) -> None:
    raw = driver(version)
    found = raw.split((0,))
    assert found == ((0, [120], [(120, 8)]) if number(version) < 13040 else (0, [132], [(132, 0)]))
    assert raw.split((10,))[0] == (INVALID_CONFIGURATION if number(version) < 13040 else 0)
    assert raw.split((0, 8))[1] == [120]


@pytest.mark.parametrize("version", ["13.1", "13.2", "13.3", "13.4", "13.5"])
def test_a_dry_run_that_names_a_count_is_refused_up_to_13_3(driver: Start, version: str) -> None:
    raw = driver(version)
    assert raw.split((0, 8), dry=True) == (0, [], [(120, 8)])
    assert raw.split((16, 8), dry=True)[0] == (INVALID_CONFIGURATION if number(version) < 13040 else 0)


def test_a_dry_run_may_find_nothing_and_a_real_split_may_not(driver: Start) -> None:
    raw = driver("13.4")
    assert raw.split((0, 2), (0, 2), dry=True) == (0, [], [(132, 2), (0, 2)])
    assert raw.split((0, 2), (0, 2))[0] == INVALID_CONFIGURATION


@pytest.mark.parametrize("version", ["13.3", "13.4", "13.5"])
def test_locality_domains_come_with_13_4(driver: Start, version: str) -> None:
    raw = driver(version, "b200")
    code, sizes, _ = raw.split((8, 8, 0, LOCALITY, 1))
    if number(version) < 13040:
        assert code == INVALID_VALUE
        return
    assert (code, sizes) == (0, [8])
    everything = raw.whole()[24]
    assert raw.split((everything, 2, 0, LOCALITY, 0))[0] == INVALID_CONFIGURATION
    assert raw.split((everything, 2, 0, LOCALITY | BACKFILL, 0))[:2] == (0, [everything])


# ---- descriptors


@pytest.mark.parametrize("version", ["12.4", "13.0", "13.1", "13.5"])
def test_what_a_descriptor_may_combine(driver: Start, version: str) -> None:
    raw = driver(version, devices=2)
    groups, rest = raw.split_by_count(raw.whole(), 8, asked=4)
    other = raw.split_by_count(raw.whole(), 16)[0][0]

    def count_in(*resources: Any) -> int:
        green = raw.green(*resources)
        found = (ctypes.c_uint32 * (RESOURCE_BYTES // 4))()
        raw.call("cuGreenCtxGetDevResource", ctypes.c_void_p(green), found, SM)
        raw.call("cuGreenCtxDestroy", ctypes.c_void_p(green))
        return size_of(found)

    assert count_in(groups[0], groups[3]) == 16
    # Accepted silently, although it should not be; from 13.1 on, what is not of one split and one alignment is refused.
    assert count_in(groups[0], groups[0]) == 16
    mixtures = {8 + size_of(rest): (groups[2], rest), 24: (groups[0], other), 132: (raw.whole(), groups[0])}
    for count, resources in mixtures.items():
        if number(version) < 13010:
            assert count_in(*resources) == count
        else:
            with pytest.raises(RawError, match=str(INVALID_CONFIGURATION)):
                raw.descriptor(*resources)
    # Refused: another device, an edited count, nothing.
    elsewhere = (ctypes.c_uint32 * (RESOURCE_BYTES // 4))()
    raw.call("cuDeviceGetDevResource", 1, elsewhere, SM)
    edited = (ctypes.c_uint32 * (RESOURCE_BYTES // 4))(*groups[1])
    edited[24] = 16
    for wrong in ([groups[0], elsewhere], [edited]):
        with pytest.raises(RawError, match=str(INVALID_CONFIGURATION)):
            raw.descriptor(*wrong)
    assert raw.code("cuDevResourceGenerateDesc", ctypes.byref(ctypes.c_void_p()), groups[0], 0) == INVALID_VALUE


def test_pieces_of_a_context_do_not_go_together_with_pieces_of_the_device(driver: Start) -> None:
    raw = driver("13.0")
    groups, _ = raw.split_by_count(raw.whole(), 16, asked=2)
    held = raw.queue(SM, of=raw.green(groups[0]))
    (inner,), _ = raw.split_by_count(held, 8)
    raw.descriptor(inner)
    with pytest.raises(RawError, match=str(INVALID_CONFIGURATION)):
        raw.descriptor(inner, groups[1])


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_creation_flags(driver: Start, version: str) -> None:
    raw = driver(version)
    description = ctypes.c_void_p(raw.descriptor(raw.split_by_count(raw.whole(), 8)[0][0]))
    out = ctypes.c_void_p()
    none = raw.code("cuGreenCtxCreate", ctypes.byref(out), description, 0, 0)
    assert none == (0 if number(version) >= 13030 else INVALID_VALUE)
    assert raw.code("cuGreenCtxCreate", ctypes.byref(out), description, 0, 2) == INVALID_VALUE
    assert raw.code("cuGreenCtxCreate", ctypes.byref(out), description, 0, 1) == 0


# ---- workqueues


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_workqueues_come_with_13_1(driver: Start, version: str) -> None:
    raw = driver(version)
    if number(version) < 13010:
        with pytest.raises(RawError, match=str(INVALID_TYPE)):
            raw.queue(WORKQUEUE_CONFIG)
        return
    config = raw.queue(WORKQUEUE_CONFIG)
    device, limit, scope = config[24:27]
    assert (device, limit, scope) == (0, 8, 0)
    group = raw.split_by_count(raw.whole(), 8)[0][0]
    config[25], config[26] = 1000, 1  # more than there are is accepted, without the promise
    green = raw.green(group, config)
    assert list(raw.queue(WORKQUEUE_CONFIG, of=green)[25:27]) == [1000, 1]
    raw.green(group, raw.queue(WORKQUEUE, of=green))
    with pytest.raises(RawError, match=str(INVALID_CONFIGURATION)):
        raw.descriptor(group, config, config)
    config[25] = 0
    with pytest.raises(RawError, match=str(INVALID_CONFIGURATION)):
        raw.descriptor(group, config)


@pytest.mark.parametrize("version", ["13.1", "13.4", "13.5"])
def test_a_device_has_the_workqueue_of_its_primary_context(driver: Start, version: str) -> None:
    raw = driver(version)
    queue, whole = raw.queue(WORKQUEUE), (ctypes.c_uint32 * 36)()
    raw.call("cuCtxGetDevResource", ctypes.c_void_p(raw.current()), whole, WORKQUEUE)
    assert list(queue) == list(whole)
    raw.green(raw.split_by_count(raw.whole(), 8)[0][0], queue)


def test_the_limit_of_the_device_follows_its_connections(driver: Start) -> None:
    assert driver("13.1", connections=4).queue(WORKQUEUE_CONFIG)[25] == 4


# ---- contexts and streams


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_priorities_are_clamped_without_an_error(driver: Start, version: str) -> None:
    raw = driver(version)
    for asked, given in [(-100, -5), (-6, -5), (-3, -3), (1, 0), (7, 0)]:
        stream = ctypes.c_void_p(raw.handle("cuStreamCreateWithPriority", STREAM_NON_BLOCKING, asked))
        reported = ctypes.c_int()
        raw.call("cuStreamGetPriority", stream, ctypes.byref(reported))
        assert reported.value == given


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_a_destroyed_context_can_be_pushed_and_not_used(driver: Start, version: str) -> None:
    raw = driver(version)
    green = raw.green(raw.split_by_count(raw.whole(), 8)[0][0])
    ctx = raw.handle("cuCtxFromGreenCtx", ctypes.c_void_p(green))
    raw.push(ctx)
    raw.call("cuGreenCtxDestroy", ctypes.c_void_p(green))
    assert raw.current() == ctx
    raw.pop()
    raw.push(ctx)
    assert raw.current() == ctx
    found = (ctypes.c_uint32 * (RESOURCE_BYTES // 4))()
    assert raw.code("cuCtxGetDevResource", ctypes.c_void_p(ctx), found, SM) == DESTROYED
    assert raw.code("cuCtxSynchronize") == DESTROYED
    assert raw.pop() == ctx
    assert raw.code("cuGreenCtxDestroy", ctypes.c_void_p(green)) == DESTROYED


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_a_stream_after_its_context(driver: Start, version: str) -> None:
    raw = driver(version)
    green = raw.green(raw.split_by_count(raw.whole(), 8)[0][0])
    stream = ctypes.c_void_p(raw.create_stream(raw.handle("cuCtxFromGreenCtx", ctypes.c_void_p(green))))
    raw.call("cuGreenCtxDestroy", ctypes.c_void_p(green))
    detached = number(version) >= 13010
    for name in ("cuStreamQuery", "cuStreamSynchronize"):
        assert raw.code(name, stream) == (DETACHED if detached else DESTROYED)
    assert raw.code("cuStreamDestroy_v2", stream) == (0 if detached else DESTROYED)


@pytest.mark.parametrize("version", VERSIONS[2:])
def test_green_streams_are_non_blocking(driver: Start, version: str) -> None:
    raw = driver(version)
    green = ctypes.c_void_p(raw.green(raw.split_by_count(raw.whole(), 8)[0][0]))
    out = ctypes.c_void_p()
    assert raw.code("cuGreenCtxStreamCreate", ctypes.byref(out), green, 0, 0) == INVALID_VALUE
    assert raw.code("cuGreenCtxStreamCreate", ctypes.byref(out), green, STREAM_NON_BLOCKING, 0) == 0
    assert raw.code("cuCtxGetDevResource", None, (ctypes.c_uint32 * 36)(), SM) == INVALID_CONTEXT


# The newest attribute in the header of each version that brought one.
NEWEST_ATTRIBUTE = {"12.3": 134, "12.5": 135, "12.8": 143, "13.0": 147, "13.1": 148, "13.3": 156, "13.4": 161}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_device_knows_the_attributes_of_its_header(driver: Callable[..., Driver], version: str) -> None:
    raw, value = driver(version), ctypes.c_int()
    newest = max(NEWEST_ATTRIBUTE[since] for since in NEWEST_ATTRIBUTE if number(since) <= number(version))
    codes = [raw.code("cuDeviceGetAttribute", ctypes.byref(value), newest + after, 0) for after in (0, 1)]
    assert codes == [0, INVALID_VALUE]


DECOMPRESS_CAPABLE, DOMAIN_ORDINAL = 21, 22


@pytest.mark.parametrize(
    ("attribute", "since", "expected"), [(DECOMPRESS_CAPABLE, "12.8", 0), (DOMAIN_ORDINAL, "13.4", -1)]
)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_pointer_knows_the_attributes_of_its_header(
    driver: Callable[..., Driver], version: str, attribute: int, since: str, expected: int
) -> None:
    raw, value, address = driver(version), ctypes.c_int(7), ctypes.c_uint64()
    raw.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(64))
    code = raw.code("cuPointerGetAttribute", ctypes.byref(value), attribute, address)
    assert (code, value.value) == ((0, expected) if number(version) >= number(since) else (NOT_SUPPORTED, 7))


PINNED, MANAGED = 1, 2
NOWHERE, OF_DEVICE = 0, 1


def pool(raw: Driver, kind: int, location: int, max_size: int = 0) -> int:
    """A pool of device 0, or of no device."""
    properties = (ctypes.c_uint32 * 22)(kind, 0, location, 0)
    ctypes.c_uint64.from_buffer(properties, 24).value = max_size
    return raw.handle("cuMemPoolCreate", properties)


def asked_of_pool(raw: Driver, pool: int, attribute: int) -> tuple[int, int]:
    value = ctypes.c_int64()
    code = raw.code("cuMemPoolGetAttribute", ctypes.c_void_p(pool), attribute, ctypes.byref(value))
    return code, ctypes.c_int(value.value).value


ALLOCATION_TYPE, LOCATION_ID, LOCATION_TYPE, MAX_POOL_SIZE, DOMAIN_OF_POOL = 9, 11, 12, 13, 15


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pool_says_how_it_was_made(driver: Callable[..., Driver], version: str) -> None:
    raw = driver(version)
    made = pool(raw, PINNED, OF_DEVICE, max_size=3 << 20)
    known = (ALLOCATION_TYPE, LOCATION_ID, LOCATION_TYPE, MAX_POOL_SIZE)
    answers = [asked_of_pool(raw, made, attribute) for attribute in known]
    if number(version) < 13020:
        assert answers == [(NOT_SUPPORTED, 0)] * 4
    else:
        assert answers == [(0, PINNED), (0, 0), (0, OF_DEVICE), (0, 4 << 20)]
    assert asked_of_pool(raw, made, DOMAIN_OF_POOL) == ((0, -1) if number(version) >= 13040 else (NOT_SUPPORTED, 0))
    changed = raw.code("cuMemPoolSetAttribute", ctypes.c_void_p(made), LOCATION_TYPE, ctypes.byref(ctypes.c_int(2)))
    assert changed == (INVALID_VALUE if number(version) >= 13020 else NOT_SUPPORTED)


def test_a_managed_pool_says_where_it_is(driver: Callable[..., Driver]) -> None:
    raw = driver("13.2")
    made = pool(raw, MANAGED, NOWHERE)
    assert [asked_of_pool(raw, made, what) for what in (ALLOCATION_TYPE, LOCATION_TYPE)] == [(0, MANAGED), (0, NOWHERE)]


@pytest.mark.parametrize("version", ["13.0", "13.1"])
def test_a_managed_pool_has_no_largest_size(driver: Callable[..., Driver], version: str) -> None:
    raw = driver(version)
    if version == "13.0":
        assert pool(raw, MANAGED, NOWHERE, max_size=1) != 0
    else:
        with pytest.raises(RawError, match=f"answered {INVALID_VALUE}"):
            pool(raw, MANAGED, NOWHERE, max_size=1)


def test_a_pool_gives_no_more_than_its_largest_size(driver: Callable[..., Driver]) -> None:
    out_of_memory = 2
    raw = driver("13.0")
    made = ctypes.c_void_p(pool(raw, PINNED, OF_DEVICE, max_size=4 << 20))
    first, second = ctypes.c_uint64(), ctypes.c_uint64()
    half, whole = ctypes.c_size_t(2 << 20), ctypes.c_size_t(4 << 20)
    raw.call("cuMemAllocFromPoolAsync", ctypes.byref(first), half, made, None)
    assert raw.code("cuMemAllocFromPoolAsync", ctypes.byref(second), whole, made, None) == out_of_memory
    raw.call("cuMemFreeAsync", first, None)
    raw.call("cuStreamSynchronize", None)
    raw.call("cuMemAllocFromPoolAsync", ctypes.byref(second), whole, made, None)


@pytest.mark.parametrize(("version", "code"), [("13.3", 101), ("13.4", NOT_SUPPORTED)])
def test_managed_memory_goes_to_no_locality_domain(driver: Callable[..., Driver], version: str, code: int) -> None:
    raw, address = driver(version), ctypes.c_uint64()
    raw.call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(4096), 1)
    locality_domain, size, set_preferred = ctypes.c_uint64(6), ctypes.c_size_t(4096), 3
    assert raw.code("cuMemPrefetchAsync_v2", address, size, locality_domain, 0, None) == code
    assert raw.code("cuMemAdvise_v2", address, size, set_preferred, locality_domain) == code
