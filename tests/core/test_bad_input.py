"""Bad input of every kind, as tables: a clear error, nothing leaked, nothing changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy
import pytest

from cuda_gctx import (
    Context,
    ContextOptions,
    Device,
    DeviceResources,
    Event,
    EventOptions,
    SMResource,
    SMResourceOptions,
    Stream,
    StreamOptions,
    WorkqueueResource,
    WorkqueueResourceOptions,
)
from cuda_software_driver import session

from ..common import green, refusal, split
from ..raw import Raw


class Odd:
    """Nothing that anything here takes."""


class Lying:
    """Says that it is an int, and fails."""

    def __index__(self) -> int:
        raise ZeroDivisionError("asked to be an int")


NO_INTS: list[Any] = [True, False, 1.0, 8.5, "8", b"8", 8j, Odd(), {8}, {8: 8}, Fraction(8), float("nan")]
NO_BOOLS: list[Any] = [0, 1, "True", None, Odd(), 1.0]


def name_of(value: Any) -> str:
    """Returns the repr without addresses, so that all processes of a run give a case the same id."""
    return re.sub(r" at 0x\w+", "", repr(value))


def table(rows: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}={name_of(value)}"[:60])
        for name, values in rows.items()
        for value in values
    ]


# ---- options of a split

WRONG_TYPES = {
    "count": [*NO_INTS, [8, "8"], [8, True], [8, 1.0], [[8]], (8, Odd()), iter([8]), range, bytearray(b"8")],
    "coscheduled_sm_count": [*NO_INTS, Lying],
    "preferred_coscheduled_sm_count": NO_INTS,
    "backfill": NO_BOOLS,
    "locality_domain": NO_INTS,
    "supplemental_sms": NO_BOOLS,
}
WRONG_VALUES: dict[str, list[Any]] = {
    "count": [-1, -8, 2**31, 2**32, 2**63, 2**64, 10**30, [], (), [8, -8], [None, None], [0, None], [0, 0], [8, 2**32]],
    "coscheduled_sm_count": [0, -2, 1, 3, 2**32, 2**64, [2], [2, 2]],
    "preferred_coscheduled_sm_count": [0, -2, 1, 3, 2**32, [2]],
    "backfill": [[True], [True, False]],
    "locality_domain": [-1, 2**32, 2**64, [0]],
    "supplemental_sms": [[True], [True, False], True],
}


@pytest.mark.parametrize(("name", "value"), table(WRONG_TYPES))
def test_a_split_option_of_the_wrong_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=name):
        SMResourceOptions(**{"count": 8, name: value})


@pytest.mark.parametrize(("name", "value"), table(WRONG_VALUES))
def test_a_split_option_of_a_wrong_value_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        SMResourceOptions(**{"count": 8, name: value})


@pytest.mark.parametrize(
    "name",
    ["coscheduled_sm_count", "preferred_coscheduled_sm_count", "backfill", "locality_domain", "supplemental_sms"],
)
@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_sequence_must_have_an_entry_for_each_group(name: str, length: int) -> None:
    entry = True if name == "backfill" else 2
    with pytest.raises(ValueError, match=f"{name} has {length} entries, expected 2: one for each group"):
        SMResourceOptions([8, 8], **{name: [entry] * length})


@pytest.mark.parametrize(
    ("name", "value"),
    [("coscheduled_sm_count", [2, 3]), ("preferred_coscheduled_sm_count", [2, 0]), ("locality_domain", [0, -1])],
)
def test_each_entry_of_a_sequence_is_checked(name: str, value: list[int]) -> None:
    with pytest.raises(ValueError, match=name):
        SMResourceOptions([8, 8], **{name: value})


@pytest.mark.parametrize("entry", [1, None, "x"])
def test_each_entry_of_backfill_is_a_bool(entry: Any) -> None:
    with pytest.raises(TypeError, match="backfill"):
        SMResourceOptions([8, 8], backfill=[True, entry])


def test_a_count_of_0_is_everything_left_as_none_is() -> None:
    assert SMResourceOptions(0) == SMResourceOptions(None)
    assert SMResourceOptions([8, 0], backfill=True) == SMResourceOptions((8, None), backfill=True)
    assert SMResourceOptions((16, numpy.int64(0))).count == (16, None)


@pytest.mark.parametrize("count", [-1, [8, -1]])
def test_a_negative_count_is_called_negative(count: Any) -> None:
    with pytest.raises(ValueError, match=r"count must be non-negative \(0 and None: all remaining SMs\), not -1"):
        SMResourceOptions(count)


@pytest.mark.parametrize("count", [[0, 0], [None, 8, 0]])
def test_two_groups_cannot_both_have_everything_left(count: Any) -> None:
    with pytest.raises(ValueError, match=r"more than one None \(or 0, which means the same\)"):
        SMResourceOptions(count)


def test_an_error_of_the_callers_own_object_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        SMResourceOptions(Lying())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [numpy.int32, numpy.int64, numpy.uint8])
def test_ints_of_other_libraries_are_ints(dev: Device, kind: Callable[[int], Any]) -> None:
    (group,), _ = split(dev.resources.sm, kind(8))
    assert group.requested == 8
    assert SMResourceOptions([kind(8), 16]) == SMResourceOptions([8, 16])
    assert SMResourceOptions((8, 16)) == SMResourceOptions([8, 16])


def test_options_are_values_that_do_not_change() -> None:
    counts: list[int | None] = [8, None]
    options = SMResourceOptions(counts, backfill=True)
    counts[0] = 16
    assert options.count == (8, None)
    assert options == SMResourceOptions((8, None), backfill=True)
    assert options != SMResourceOptions((8, None))
    assert options != (8, None)
    assert len({options, SMResourceOptions((8, None), backfill=True)}) == 1
    assert repr(options) == "SMResourceOptions(count=(8, None), backfill=True)"
    for name in (
        "count",
        "coscheduled_sm_count",
        "preferred_coscheduled_sm_count",
        "backfill",
        "locality_domain",
        "supplemental_sms",
    ):
        with pytest.raises(AttributeError):
            setattr(options, name, 2)


OTHER_OPTIONS: list[Any] = [
    pytest.param(ContextOptions, {}, ValueError, "resources must be provided", id="nothing"),
    pytest.param(ContextOptions, {"resources": None}, ValueError, "resources must be provided", id="resources=None"),
    pytest.param(ContextOptions, {"resources": []}, ValueError, "empty", id="resources=[]"),
    pytest.param(ContextOptions, {"resources": ()}, ValueError, "empty", id="resources=()"),
    pytest.param(ContextOptions, {"resources": [None]}, TypeError, "NoneType", id="resources=[None]"),
    pytest.param(ContextOptions, {"resources": [8]}, TypeError, "int", id="resources=[8]"),
    pytest.param(ContextOptions, {"resources": "sm"}, TypeError, "resources", id="resources='sm'"),
    pytest.param(ContextOptions, {"resources": {}}, TypeError, "resources", id="resources={}"),
    pytest.param(ContextOptions, {"resources": [SMResource]}, TypeError, "resources", id="resources=[class]"),
    *(
        pytest.param(StreamOptions, {"nonblocking": value}, TypeError, "nonblocking", id=f"nonblocking={value!r}"[:40])
        for value in NO_BOOLS
    ),
    *(
        pytest.param(StreamOptions, {"priority": value}, TypeError, "priority", id=f"priority={value!r}"[:40])
        for value in NO_INTS
    ),
    pytest.param(StreamOptions, {"priority": 2**31}, ValueError, "priority", id="priority=2**31"),
    pytest.param(StreamOptions, {"priority": -(2**70)}, ValueError, "priority", id="priority=-2**70"),
    *(
        pytest.param(EventOptions, {name: value}, TypeError, name, id=f"{name}={value!r}"[:40])
        for name in ("timing_enabled", "blocking_sync")
        for value in NO_BOOLS
    ),
]


@pytest.mark.parametrize(("kind", "arguments", "error", "words"), OTHER_OPTIONS)
def test_wrong_options_of_contexts_streams_and_events_are_refused(
    kind: Callable[..., Any], arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        kind(**arguments)


@pytest.mark.parametrize("name", ["exclusive", "name"])
@pytest.mark.parametrize("value", [1, b"decode", Odd(), ["x"]])
def test_wrong_flags_of_a_context_are_refused(dev: Device, name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=name):
        ContextOptions([dev.resources.sm], **{name: value})


# ---- calls


@dataclass
class Machine:
    """A machine with two devices and something of everything, whose state no bad call may change."""

    sim: Any
    dev: Device
    other: Device
    group: SMResource
    remainder: SMResource
    empty: SMResource
    dry: SMResource
    foreign: SMResource
    queue: WorkqueueResource
    ctx: Context
    stream: Stream
    event: Event

    def state(self) -> Any:
        raw = Raw()
        return (
            [(found.kind, found.handle, found.amount) for found in self.sim.ledger().live],
            raw.current(),
            (self.ctx.is_closed, self.stream.is_closed, self.event.is_closed),
            self.queue.concurrency_limit,
        )


@pytest.fixture(params=["12.8", "13.4"])
def machine(sim: Callable[..., Any], request: pytest.FixtureRequest) -> Iterator[Machine]:
    session = sim("h200", driver=request.param, devices=2)
    dev, other = Device(0), Device(1)
    (group, mine), remainder = split(dev.resources.sm, [8, 16])
    _, empty = split(dev.resources.sm, None, backfill=True)
    (dry,), _ = dev.resources.sm.split(SMResourceOptions([8]), dry_run=True)
    (foreign,), _ = split(other.resources.sm, 8)
    other.context.create_stream().close()
    dev.context.create_stream().close()
    queue = Limit() if request.param == "12.8" else dev.resources.workqueue
    with green(dev, mine) as ctx, ctx.create_stream() as stream, ctx.create_event() as event:
        yield Machine(
            session,
            dev,
            other,
            group,
            remainder,
            empty,
            dry,
            foreign,
            queue,
            ctx,
            stream,
            event,  # type: ignore[arg-type]
        )


class Limit:
    """Stands in for a workqueue where the driver has none."""

    concurrency_limit = 0


Call = Callable[[Machine], object]
BAD_CALLS: dict[str, tuple[type[Exception], str, Call]] = {
    "split of None": (TypeError, "", lambda m: m.dev.resources.sm.split(None)),  # type: ignore[arg-type]
    "split of a str": (TypeError, "", lambda m: m.dev.resources.sm.split("8")),
    "split of a dict of other fields": (TypeError, "", lambda m: m.dev.resources.sm.split({"counts": 8})),
    "split with dry_run by position": (
        TypeError,
        "",
        lambda m: m.dev.resources.sm.split(SMResourceOptions(8), True),  # type: ignore[misc]
    ),
    "split of nothing": (ValueError, "no SMs", lambda m: split(m.empty, 8)),
    "split of a dry run": (ValueError, "dry", lambda m: split(m.dry, 8)),
    "split of more than there is": (ValueError, "132 SMs", lambda m: split(m.dev.resources.sm, 133)),
    "split of more than a group has": (ValueError, "8 SMs", lambda m: split(m.group, 16)),
    "context of None": (ValueError, "must be provided", lambda m: m.dev.create_context(None)),  # type: ignore[arg-type]
    "context of a list": (TypeError, "", lambda m: m.dev.create_context([m.group])),  # type: ignore[arg-type]
    "context of a resource": (TypeError, "", lambda m: m.dev.create_context(m.group)),  # type: ignore[arg-type]
    "context of a bare resource": (TypeError, "brackets", lambda m: ContextOptions(m.group)),  # type: ignore[arg-type]
    "context of DeviceResources": (TypeError, "DeviceResources", lambda m: green(m.dev, m.dev.resources)),
    "context of nothing": (ValueError, "no SMs", lambda m: green(m.dev, m.empty)),
    "context of a group and nothing": (ValueError, "no SMs", lambda m: green(m.dev, m.group, m.empty)),
    "context of a dry run": (ValueError, "dry", lambda m: green(m.dev, m.dry)),
    "context of a group and a dry run": (ValueError, "dry", lambda m: green(m.dev, m.group, m.dry)),
    "context of another device": (ValueError, "device 1", lambda m: green(m.dev, m.foreign)),
    "context of two devices": (ValueError, "device 1", lambda m: green(m.dev, m.group, m.foreign)),
    "context of a group twice": (ValueError, "same SMs", lambda m: green(m.dev, m.group, m.group)),
    "context of a group and the device": (ValueError, "same SMs", lambda m: green(m.dev, m.group, m.dev.resources.sm)),
    "stream of wrong options": (TypeError, "", lambda m: m.ctx.create_stream(EventOptions())),  # type: ignore[arg-type]
    "stream of a number": (TypeError, "", lambda m: m.ctx.create_stream(-1)),  # type: ignore[arg-type]
    "stream that blocks": (ValueError, "non-blocking", lambda m: m.ctx.create_stream(StreamOptions(False))),
    "stream of priority 1": (ValueError, "priority", lambda m: m.ctx.create_stream(StreamOptions(priority=1))),
    "stream of priority -6": (ValueError, "priority", lambda m: m.dev.create_stream(StreamOptions(priority=-6))),
    "event of wrong options": (TypeError, "", lambda m: m.ctx.create_event(StreamOptions())),  # type: ignore[arg-type]
    "event of a bool": (TypeError, "", lambda m: m.dev.create_event(True)),  # type: ignore[arg-type]
    "record of a stream": (TypeError, "", lambda m: m.stream.record(m.stream)),  # type: ignore[arg-type]
    "record with wrong options": (TypeError, "", lambda m: m.stream.record(None, 1)),  # type: ignore[arg-type]
    "record of an event with options": (ValueError, "options", lambda m: m.stream.record(m.event, EventOptions())),
    "wait for None": (TypeError, "", lambda m: m.stream.wait(None)),  # type: ignore[arg-type]
    "wait for a number": (TypeError, "", lambda m: m.stream.wait(m.event.handle)),  # type: ignore[arg-type]
    "wait for a context": (TypeError, "", lambda m: m.stream.wait(m.ctx)),  # type: ignore[arg-type]
    "context waits for None": (TypeError, "", lambda m: m.ctx.wait_event(None)),  # type: ignore[arg-type]
    "context waits for no context": (TypeError, "", lambda m: m.ctx.wait_context(m.stream)),  # type: ignore[arg-type]
    "context waits for a stream": (TypeError, "", lambda m: m.ctx.wait_event(m.stream)),  # type: ignore[arg-type]
    "context records a stream": (TypeError, "", lambda m: m.ctx.record_event(m.stream)),  # type: ignore[arg-type]
    "current of a device": (TypeError, "", lambda m: m.dev.set_current(m.dev)),  # type: ignore[arg-type]
    "current of a number": (TypeError, "", lambda m: m.dev.set_current(m.ctx.handle)),  # type: ignore[arg-type]
    "current of another device": (ValueError, "device 0", lambda m: m.other.set_current(m.ctx)),
    "difference with a number": (TypeError, "", lambda m: m.event - 1.0),  # type: ignore[operator]
    "overlap with None": (TypeError, "", lambda m: m.group.overlaps(None)),  # type: ignore[arg-type]
    "Stream of None": (TypeError, "a Stream comes from", lambda m: Stream(None)),  # type: ignore[arg-type]
    "Stream of a number": (TypeError, "int", lambda m: Stream(m.stream.handle)),  # type: ignore[arg-type]
    "Stream of nothing": (TypeError, "a Stream comes from", lambda m: Stream()),  # type: ignore[call-arg]
    "made by hand: Context": (TypeError, "comes from", lambda m: Context()),
    "made by hand: Event": (TypeError, "comes from", lambda m: Event()),
    "made by hand: SMResource": (TypeError, "comes from", lambda m: SMResource()),
    "made by hand: DeviceResources": (TypeError, "come from", lambda m: DeviceResources()),
    "made by hand: WorkqueueResource": (TypeError, "comes from", lambda m: WorkqueueResource()),
}
for kind in (Context, Stream):
    for handle in (*NO_INTS, None, [1]):
        BAD_CALLS[f"{kind.__name__}.from_handle({handle!r})"[:60]] = (
            TypeError,
            "handle",
            lambda m, kind=kind, handle=handle: kind.from_handle(handle),
        )
    for number in (0, -1, 2**64, 2**70):
        BAD_CALLS[f"{kind.__name__}.from_handle({number})"] = (
            ValueError,
            "handle",
            lambda m, kind=kind, number=number: kind.from_handle(number),
        )
# Of one type with the right one, and on drivers that have them.
WORKQUEUE_CALLS: dict[str, tuple[type[Exception], str, Call]] = {
    "context of two workqueues": (
        ValueError,
        "more than one",
        lambda m: green(m.dev, m.group, m.queue, m.dev.resources.workqueue),
    ),
    "context of another device's workqueue": (
        ValueError,
        "device 1",
        lambda m: green(m.dev, m.group, m.other.resources.workqueue),
    ),
    "configure with None": (TypeError, "", lambda m: m.queue.configure(None)),  # type: ignore[arg-type]
    "configure with limit 0": (
        ValueError,
        "limit",
        lambda m: m.queue.configure(WorkqueueResourceOptions(concurrency_limit=0)),
    ),
}


def check_refused(machine: Machine, row: tuple[type[Exception], str, Call]) -> None:
    kind, words, call = row
    before = machine.state()
    error = refusal(kind, lambda: call(machine))
    assert words in str(error)
    assert str(error)
    assert machine.state() == before
    machine.ctx.create_stream().close()


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_call_is_refused_and_changes_nothing(machine: Machine, case: str) -> None:
    check_refused(machine, BAD_CALLS[case])


@pytest.mark.parametrize("case", WORKQUEUE_CALLS)
@pytest.mark.parametrize("machine", ["13.4"], indirect=True)
def test_a_bad_call_with_workqueues_is_refused_and_changes_nothing(machine: Machine, case: str) -> None:
    check_refused(machine, WORKQUEUE_CALLS[case])


def test_handles_that_no_object_has_are_refused_by_the_driver(sim: Callable[..., Any]) -> None:
    machine = sim()
    raw = Raw()
    Device(0).context.create_stream().close()
    before = machine.ledger().live
    for number in (3, 0xDEAD0000, 2**63):
        refusal(RuntimeError, lambda number=number: Stream.from_handle(number))
        refusal(RuntimeError, lambda number=number: Context.from_handle(number))
        assert raw.current() == 0
    assert machine.ledger().live == before


def test_resources_of_a_closed_driver_are_refused(sim: Callable[..., Any]) -> None:
    with session("h200"):
        old = Device(0)
        (group,), _ = split(old.resources.sm, 8)
    sim("h200")
    dev = Device(0)
    for use in (
        lambda: green(dev, group),
        lambda: split(group, 2),
        lambda: old.context,
        lambda: old.resources,
        lambda: old.create_stream(),
        lambda: old.name,
    ):
        error = refusal(Exception, use)
        assert isinstance(error, (ValueError, RuntimeError))
        assert "closed" in str(error)
