"""Splits mean the same on every driver, report what they gave, and suggest what fits where they refuse."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import Device, FeatureNotSupported, SMResourceOptions, SplitError

from ..common import DRIVERS, NEW_DRIVERS, OLD_DRIVERS, Counts, green, refusal, sizes, split
from ..raw import resource_bytes

Machines = Callable[..., Any]

BACKFILL = {"backfill": True}
PAIRS = {"coscheduled_sm_count": 2}

# On an H200: what is asked, with which options, what the groups get, what remains.
H200_ROWS: list[tuple[Counts, dict[str, Any], list[int], int]] = [
    ([8, 16, 24], {}, [8, 16, 24], 84),
    ([24, 8, 16], {}, [24, 8, 16], 84),
    (8, {}, [8], 124),
    (1, {}, [8], 124),
    (10, {}, [16], 116),
    ([10], {}, [16], 116),
    ([10], BACKFILL, [10], 122),
    (10, BACKFILL, [10], 122),
    ([2, 4, 6], BACKFILL, [2, 4, 6], 120),
    (2, PAIRS, [2], 130),
    (9, PAIRS, [10], 122),
    ([8] * 15, {}, [8] * 15, 12),
    ([64, 64], {}, [64, 64], 4),
    # Eight units of 16 hold more SMs than fifteen of 8; where a group of 8 is asked for, the units are of 8.
    (None, {}, [128], 4),
    ([16, None], {}, [16, 112], 4),
    ([None, 16], {}, [112, 16], 4),
    ([8, None, 16], {}, [8, 96, 16], 12),
    # What a chain of splits can give is given.
    ([64, 32, 16, 8, 8], {}, [64, 32, 16, 8, 8], 4),
    ([104, 24], {}, [104, 24], 4),
    ([8, 8, 16, 32, 64], {}, [8, 8, 16, 32, 64], 4),
    ([8] * 16, {}, [8] * 16, 4),
    # A co-scheduling that is asked for is a promise, which the units of 16 and of pairs do not keep.
    (None, {"coscheduled_sm_count": 8}, [120], 12),
    ([119, None], {"coscheduled_sm_count": [2, 8]}, [120, 8], 4),
    ([104, 16, None], {"coscheduled_sm_count": [2, None, 8]}, [104, 16, 8], 4),
    ([90, 16, None, 16], {"backfill": [True, True, False, False]}, [90, 16, 8, 16], 2),
    (None, BACKFILL, [132], 0),
    ([10, None], BACKFILL, [10, 122], 0),
    ([None, 10], BACKFILL, [122, 10], 0),
]


@pytest.mark.parametrize(
    ("count", "options", "groups", "remainder"), H200_ROWS, ids=[f"{row[0]}-{row[1]}" for row in H200_ROWS]
)
@pytest.mark.parametrize("driver", DRIVERS)
def test_the_same_request_means_the_same_on_every_driver(
    sim: Machines, driver: str, count: Counts, options: dict[str, Any], groups: list[int], remainder: int
) -> None:
    sim("h200", driver=driver)
    assert sizes(*split(Device(0).resources.sm, count, **options)) == (groups, remainder)


ROWS_OF_OTHER_CARDS: list[tuple[str, Counts, dict[str, Any], list[int]]] = [
    ("h200", [30, 30, None], {}, [32, 32, 64]),
    ("h200", [118, 1, 1], {"coscheduled_sm_count": [8, 2, None]}, [120, 2, 8]),
    ("rtx5080", None, {}, [80]),
    ("rtx5080", [None, 40], {}, [40, 40]),
    ("b200", [88, None, 48], {"backfill": [True, False, True]}, [88, 8, 48]),
    ("b200", [109, 8, 24], {}, [112, 8, 24]),
    ("a100", [98, 10], {}, [98, 10]),
]


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("card", "count", "options", "groups"), ROWS_OF_OTHER_CARDS)
def test_a_request_means_the_same_on_every_card(
    sim: Machines, driver: str, card: str, count: Counts, options: dict[str, Any], groups: list[int]
) -> None:
    sim(card, driver=driver)
    assert sizes(*split(Device(0).resources.sm, count, **options))[0] == groups


# As programs for cuda.core write it: what is left, in pairs.
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_count_of_0_gets_everything_left(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    whole = Device(0).resources.sm
    for count in (0, None):
        groups, remainder = split(whole, (16, count), coscheduled_sm_count=(2, 2))
        assert (sizes(groups, remainder), groups[1].requested) == (([16, 116], 0), None)
    assert sizes(*whole.split(0)) == sizes(*whole.split([0])) == sizes(*split(whole, None)) == ([128], 4)
    assert sizes(*whole.split({"count": [0, 8]})) == ([112, 8], 12)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_group_reports_no_more_than_can_be_promised(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    whole = Device(0).resources.sm

    def reported(count: Counts, **options: Any) -> list[int]:
        return [group.coscheduled_alignment for group in split(whole, count, **options)[0]]

    # 128 SMs are units of 16 and more, and of the 132 only 120 sit in eights.
    assert refusal(SplitError, lambda: split(whole, 128, coscheduled_sm_count=8)).suggestion is not None
    assert reported(128) == reported(None) == [2]
    assert reported([64, 64]) == reported([16, None]) == [2, 2]
    assert reported(120) == reported(None, coscheduled_sm_count=8) == [8]
    assert reported([64, 32, 16, 8, 8]) == [8, 8, 8, 8, 2]
    # What is filled up with pairs promises pairs; what could be had in sets is.
    assert reported([20, 16, 2], backfill=True) == [2, 2 if driver in OLD_DRIVERS else 8, 2]
    assert reported([24, 16], backfill=True) == reported([24, 16], coscheduled_sm_count=2) == [8, 8]
    (half, _), rest = split(whole, [64, 64])
    assert rest.coscheduled_alignment == 2
    with green(Device(0), half) as ctx:
        assert ctx.resources.sm.coscheduled_alignment == 2
    # It is still split in the driver's units.
    assert sizes(*split(half, [10])) == ([16], 48)


SHRUNK: list[tuple[str, list[int | None], dict[str, Any], tuple[int | None, ...]]] = [
    ("h200", [130, 1, 1], {"backfill": [True, False, False]}, (116, 8, 8)),
    ("h200", [57, 24, 24, 24], {}, (56, 24, 24, 24)),
    ("h200", [120, 24], {}, (104, 24)),
    ("h200", [11], BACKFILL, (12,)),
    ("a100", [100, 10], {}, (98, 10)),
    ("a100", [100, 1, 4, 2, 1], {"backfill": [False, False, False, True, False]}, (94, 4, 4, 2, 4)),
]


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("card", "counts", "options", "suggested"), SHRUNK)
def test_a_suggestion_takes_the_sms_from_the_largest_group(
    sim: Machines,
    driver: str,
    card: str,
    counts: list[int | None],
    options: dict[str, Any],
    suggested: tuple[int | None, ...],
) -> None:
    sim(card, driver=driver)
    error = refusal(SplitError, lambda: split(Device(0).resources.sm, counts, **options))
    assert error.suggestion is not None
    assert error.suggestion.count == suggested


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("count", [132, 133, 1_000_000])
def test_one_group_of_more_than_can_be_aligned_is_told_to_take_what_is_left(
    sim: Machines, driver: str, count: int
) -> None:
    sim("h200", driver=driver)
    whole = Device(0).resources.sm
    error = refusal(SplitError, lambda: split(whole, count))
    assert error.suggestion == SMResourceOptions([None])
    assert sizes(*whole.split(error.suggestion)) == ([128], 4)


PROMISES = [("remainder", 8), ("remainder", 16), ("exact group", 8)]


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("source", "coscheduled"), PROMISES)
def test_a_co_scheduling_is_kept_or_refused(sim: Machines, driver: str, source: str, coscheduled: int) -> None:
    sim("h200", driver=driver)
    whole = Device(0).resources.sm
    if source == "remainder":
        _, outer = split(whole, [64])
    else:
        (outer,), _ = split(whole, [20], backfill=True)
    try:
        (group,), _ = split(outer, [16], coscheduled_sm_count=coscheduled)
    except SplitError:
        assert driver in OLD_DRIVERS or source == "exact group"
    else:
        assert group.coscheduled_alignment >= coscheduled


@pytest.mark.parametrize("driver", DRIVERS)
def test_mixed_grains_are_served_on_every_driver(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    groups, remainder = split(Device(0).resources.sm, [10, 16, 24], backfill=[True, False, False])
    assert sizes(groups, remainder) == ([10, 16, 24], 82)
    assert [group.strategy for group in groups] == ["structured" if driver in NEW_DRIVERS else "bisected"] * 3


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_aligned_rest_next_to_an_exact_group_stays_aligned(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    groups, remainder = split(Device(0).resources.sm, [None, 10], backfill=[False, True])
    (everything, exact), rest = sizes(groups, remainder)
    assert exact == 10
    assert everything % 8 == 0
    assert everything >= 96
    assert everything + exact + rest == 132


@pytest.mark.parametrize("driver", OLD_DRIVERS)
@pytest.mark.parametrize(
    ("count", "options", "strategy"),
    [
        ([8, 16, 24], {}, "composed"),
        ([16, None], {}, "composed"),
        ([8, 8], {}, "by-count"),
        # Where units of 8 are too few, the largest ones that the driver gives.
        (None, {}, "by-count"),
        ([64, 64], {}, "by-count"),
        ([96, 32], {}, "composed"),
        (10, BACKFILL, "fine"),
        ([16, 10], {"backfill": [False, True]}, "bisected"),
    ],
)
def test_strategy_reports_how_a_group_was_made(
    sim: Machines, driver: str, count: Counts, options: dict[str, Any], strategy: str
) -> None:
    sim("h200", driver=driver)
    groups, _ = split(Device(0).resources.sm, count, **options)
    assert {group.strategy for group in groups} == {strategy}


@pytest.mark.parametrize("driver", NEW_DRIVERS)
def test_the_structured_split_is_used_where_the_driver_has_it(sim: Machines, driver: str) -> None:
    machine = sim("h200", driver=driver)
    groups, _ = split(Device(0).resources.sm, [8, 16, 24])
    assert {group.strategy for group in groups} == {"structured"}
    assert machine.calls("cuDevSmResourceSplit") >= 1


def test_requested_is_shown_with_what_was_given(dev: Device) -> None:
    whole = dev.resources.sm
    grain = whole.coscheduled_alignment
    groups, remainder = split(whole, [whole.min_partition_size + 1, None])
    assert groups[0].requested == whole.min_partition_size + 1
    assert groups[0].sm_count >= groups[0].requested
    assert groups[0].sm_count % grain == 0
    assert groups[1].requested is None
    assert groups[1].sm_count % grain == 0
    assert remainder.requested is None


def test_groups_and_remainder_are_all_of_the_device(dev: Device) -> None:
    whole = dev.resources.sm
    least = whole.min_partition_size
    groups, remainder = split(whole, [least, 2 * least, 3 * least])
    assert [group.sm_count for group in groups] == [least, 2 * least, 3 * least]
    assert sum(group.sm_count for group in groups) + remainder.sm_count == whole.sm_count == dev.sm_count
    pieces = [*groups, remainder]
    assert not any(a.overlaps(b) for a in pieces for b in pieces if a is not b and b.sm_count)


def test_backfill_gives_exactly_what_was_asked(dev: Device) -> None:
    groups, remainder = split(dev.resources.sm, [10, 6], backfill=True)
    assert sizes(groups, remainder) == ([10, 6], dev.sm_count - 16)
    assert [group.requested for group in groups] == [10, 6]


def test_everything_left_with_backfill_leaves_nothing(dev: Device) -> None:
    groups, remainder = split(dev.resources.sm, [8, None], backfill=True)
    assert sizes(groups, remainder) == ([8, dev.sm_count - 8], 0)


def test_scalars_broadcast_over_the_groups(dev: Device) -> None:
    once, _ = split(dev.resources.sm, [2, 4], coscheduled_sm_count=2)
    each, _ = split(dev.resources.sm, [2, 4], coscheduled_sm_count=[2, 2])
    assert [group.sm_count for group in once] == [group.sm_count for group in each] == [2, 4]


def test_a_device_and_its_groups_describe_themselves(sim: Machines) -> None:
    sim("h200", driver="13.0")
    whole = Device(0).resources.sm
    assert (whole.sm_count, whole.min_partition_size, whole.coscheduled_alignment) == (132, 8, 8)
    assert (whole.requested, whole.strategy, whole.unit_count, whole.is_dry_run) == (None, None, 1, False)
    assert whole.device == Device(0)
    (aligned,), _ = split(whole, 16)
    (exact,), _ = split(whole, 10, backfill=True)
    assert (aligned.coscheduled_alignment, exact.coscheduled_alignment) == (8, 2)
    assert "16 SMs" in repr(aligned)
    assert "requested 10" in repr(exact)


def test_a_larger_preferred_size_keeps_the_count(dev: Device) -> None:
    grain = dev.resources.sm.coscheduled_alignment
    (group,), _ = split(dev.resources.sm, 8 * grain, preferred_coscheduled_sm_count=2 * grain)
    assert group.sm_count == 8 * grain


def test_a_remainder_without_sms_is_a_resource_that_no_context_takes(dev: Device) -> None:
    _, remainder = split(dev.resources.sm, None, backfill=True)
    assert remainder.sm_count == 0
    assert "0 SMs" in repr(remainder)
    with pytest.raises(ValueError, match="no SMs"):
        green(dev, remainder)
    with pytest.raises(SplitError, match="no SMs"):
        split(remainder, 2)


def test_the_same_split_again_gives_the_same_sms(dev: Device) -> None:
    first, rest = split(dev.resources.sm, [8, 16])
    second, rest_again = split(dev.resources.sm, [8, 16])
    for a, b in zip([*first, rest], [*second, rest_again], strict=True):
        assert resource_bytes(a) == resource_bytes(b)
        assert a.overlaps(b) is True


# ---- splitting what a split gave


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_group_and_a_remainder_can_be_split_again(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    (group, other), remainder = split(Device(0).resources.sm, [48, 16])
    inner, left = split(group, [8, 16])
    assert sizes(inner, left) == ([8, 16], 24)
    of_rest, last = split(remainder, [16, 8])
    assert sizes(of_rest, last) == ([16, 8], 44)
    assert all(piece.overlaps(group) is True for piece in [*inner, left])
    assert all(piece.overlaps(other) is False for piece in [*inner, left, *of_rest, last])
    assert all(a.overlaps(b) is False for a in [*inner, left] for b in [*of_rest, last])


def test_splitting_again_takes_one_hidden_context_and_keeps_it(sim: Machines) -> None:
    machine = sim("h200", driver="13.0")
    whole = Device(0).resources.sm
    for _ in range(3):
        (group,), _ = split(whole, 48)
    assert machine.calls("cuGreenCtxCreate") == 0
    for _ in range(3):
        (group,), _ = split(whole, 48)
        assert sizes(*split(group, [8, 16])) == ([8, 16], 24)
        split(group, 8)
    assert machine.calls("cuGreenCtxCreate") == 1
    assert machine.calls("cuGreenCtxDestroy") == 0


def test_mixed_grains_take_hidden_contexts_once(sim: Machines) -> None:
    machine = sim("h200", driver="13.0")
    for _ in range(4):
        split(Device(0).resources.sm, [16, 10], backfill=[False, True])
    assert machine.calls("cuGreenCtxCreate") == 1


def test_a_hidden_context_is_not_an_overlap(sim: Machines) -> None:
    sim("h200", driver="13.0")
    dev = Device(0)
    (group,), _ = split(dev.resources.sm, 48)
    (inner,), left = split(group, 16)
    with green(dev, inner, exclusive=True) as a, green(dev, left, exclusive=True) as b:
        assert (a.sm_count, b.sm_count) == (16, 32)


def test_what_a_context_was_given_can_be_split(dev: Device) -> None:
    least = dev.resources.sm.min_partition_size
    (group,), _ = split(dev.resources.sm, 4 * least)
    with green(dev, group) as ctx:
        assert sizes(*split(ctx.resources.sm, [least, 2 * least])) == ([least, 2 * least], least)


# ---- dry runs


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    ("count", "options"),
    [([8, 16, 24], {}), ([16, None], {}), (10, BACKFILL), ([16, 10], {"backfill": [False, True]}), (None, BACKFILL)],
)
def test_a_dry_run_answers_what_a_real_split_would(
    sim: Machines, driver: str, count: Counts, options: dict[str, Any]
) -> None:
    sim("h200", driver=driver)
    whole = Device(0).resources.sm
    asked = SMResourceOptions(count, **options)
    dry, dry_rest = whole.split(asked, dry_run=True)
    real, real_rest = whole.split(asked)
    for a, b in zip([*dry, dry_rest], [*real, real_rest], strict=True):
        assert (a.sm_count, a.requested, a.strategy) == (b.sm_count, b.requested, b.strategy)
        assert (a.is_dry_run, b.is_dry_run) == (True, False)


def test_results_of_a_dry_run_are_refused_everywhere(dev: Device) -> None:
    groups, remainder = dev.resources.sm.split(SMResourceOptions([8, 16]), dry_run=True)
    for resource in [*groups, remainder]:
        assert "dry run" in repr(resource)
        with pytest.raises(ValueError, match="without dry_run"):
            green(dev, resource)
        with pytest.raises(ValueError, match="without dry_run"):
            split(resource, 2)
        with pytest.raises(ValueError, match="without dry_run"):
            resource.split(SMResourceOptions(2), dry_run=True)


def test_a_dry_run_refuses_what_a_real_split_would(dev: Device) -> None:
    asked = SMResourceOptions(dev.sm_count + 1)
    with pytest.raises(SplitError):
        dev.resources.sm.split(asked, dry_run=True)


# ---- refusals

TOO_MUCH: list[tuple[Counts, dict[str, Any]]] = [
    (133, {}),
    (1_000_000, {}),
    ([120, 24], {}),
    ([8] * 15 + [16], {}),
    ([64, 64], {"coscheduled_sm_count": 8}),
    ([64, 56, None], {}),
    ([64, 64, 8], {}),
    ([132, None], BACKFILL),
    ([124, None], {}),
    ([66, 68], BACKFILL),
    (11, BACKFILL),
    ([100, 31], BACKFILL),
    ([130, 8], {"backfill": [True, False]}),
    ([32] * 5, {"coscheduled_sm_count": 16}),
]


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("count", "options"), TOO_MUCH)
def test_the_suggestion_of_a_refusal_works(sim: Machines, driver: str, count: Counts, options: dict[str, Any]) -> None:
    sim("h200", driver=driver)
    whole = Device(0).resources.sm
    error = refusal(SplitError, lambda: split(whole, count, **options))
    assert isinstance(error, ValueError)
    assert isinstance(error.suggestion, SMResourceOptions)
    groups, _ = whole.split(error.suggestion)
    counts = error.suggestion.count
    assert isinstance(counts, tuple)
    assert len(groups) == len(counts)
    assert all(group.sm_count == asked for group, asked in zip(groups, counts, strict=True) if asked is not None)


def test_a_refusal_names_what_was_asked_what_there_is_and_what_would_fit(sim: Machines) -> None:
    sim("h200", driver="13.0")
    whole = Device(0).resources.sm
    message = str(refusal(SplitError, lambda: split(whole, [120, 24])))
    for part in ("[120, 24]", "132 SMs", "alignment 8", "a request that fits is ["):
        assert part in message


def test_a_refusal_names_the_option_that_would_make_it_fit(sim: Machines) -> None:
    sim("h200", driver="13.0")
    whole = Device(0).resources.sm
    assert "backfill=True" in str(refusal(SplitError, lambda: split(whole, [66, 66])))
    assert sizes(*split(whole, [66, 66], backfill=True)) == ([66, 66], 0)


@pytest.mark.parametrize("driver", OLD_DRIVERS)
def test_a_refusal_names_the_driver_that_would_make_it_fit(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    message = str(refusal(SplitError, lambda: split(Device(0).resources.sm, 32, coscheduled_sm_count=16)))
    assert "coscheduled_sm_count=16" in message
    assert "13.1" in message
    assert driver in message


@pytest.mark.parametrize("driver", NEW_DRIVERS)
def test_larger_coscheduling_is_the_grain_where_the_driver_has_it(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    (group,), rest = split(Device(0).resources.sm, 17, coscheduled_sm_count=16)
    assert (group.sm_count, group.requested, rest.sm_count) == (32, 17, 100)


def test_a_refusal_leaves_nothing_behind(sim: Machines) -> None:
    machine = sim("h200", driver="13.0")
    for count, options in TOO_MUCH:
        refusal(SplitError, lambda count=count, options=options: split(Device(0).resources.sm, count, **options))
    # But for what the package keeps of the device: nothing. (What a driver loses with each context is the driver's.)
    assert {found.kind for found in machine.ledger().live} <= {"primary context retain"}


# ---- locality domains


def test_a_locality_domain_gives_sms_of_that_domain(sim: Machines) -> None:
    sim("b200", driver="13.4")
    groups, _ = split(Device(0).resources.sm, [16, 16], locality_domain=[0, 1])
    assert [group.sm_count for group in groups] == [16, 16]
    assert groups[0].overlaps(groups[1]) is False


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({"coscheduled_sm_count": 2}, [72, 72]),
        ({}, [64, 64]),
    ],
)
def test_each_locality_domain_can_have_a_group_of_all_its_sms(
    sim: Machines, fields: dict[str, Any], given: list[int]
) -> None:
    sim("b200", driver="13.4")
    dev = Device(0)
    assert dev.locality_domains == 2
    whole = dev.resources.sm
    groups, remainder = split(whole, [None, None], locality_domain=[1, 0], **fields)
    assert [group.sm_count for group in groups] == given
    assert [group.locality_domain for group in groups] == [1, 0]
    assert groups[0].overlaps(groups[1]) is False
    assert (whole.locality_domain, remainder.locality_domain) == (None, None)
    for group in groups:  # and no more than that
        [alone], _ = split(whole, [None], locality_domain=group.locality_domain, **fields)
        assert alone.sm_count == group.sm_count


def test_any_locality_domain_is_all_sms_of_domains(sim: Machines) -> None:
    sim("b200", driver="13.5")
    whole = Device(0).resources.sm
    [group], remainder = split(whole, [None], locality_domain="any", coscheduled_sm_count=2)
    assert (group.sm_count, remainder.sm_count, group.locality_domain) == (144, 4, None)
    error = refusal(SplitError, lambda: split(whole, [146], locality_domain="any"))
    assert error.suggestion is not None
    assert error.suggestion.locality_domain == "any"
    assert whole.split(error.suggestion, dry_run=True)[0][0].sm_count == 144
    with pytest.raises(ValueError, match="more than one None"):
        SMResourceOptions([None, None], locality_domain=["any", 0])


def test_supplemental_sms_are_those_beyond_what_every_domain_has(sim: Machines) -> None:
    sim("b200", driver="13.5")
    whole = Device(0).resources.sm
    for supplemental, given in [(False, [72, 72]), (True, [74, 74]), ([True, False], [74, 72])]:
        options = SMResourceOptions(
            [None, None], locality_domain=[0, 1], coscheduled_sm_count=2, supplemental_sms=supplemental
        )
        assert [group.sm_count for group in whole.split(options)[0]] == given
    with pytest.raises(ValueError, match="supplemental_sms requires locality_domain"):
        SMResourceOptions(8, supplemental_sms=True)
    sim("b200", driver="13.4")
    error = refusal(
        FeatureNotSupported, lambda: split(Device(0).resources.sm, 8, locality_domain=0, supplemental_sms=True)
    )
    assert "need CUDA driver 13.5 or newer; this driver is 13.4" in str(error)


@pytest.mark.parametrize(("backfill", "counts"), [(False, [72, 72]), (True, [74, 74])])
def test_a_device_is_partitioned_by_locality_domain(sim: Machines, backfill: bool, counts: list[int]) -> None:
    sim("b200", driver="13.4")
    dev = Device(0)
    asked: Any = 74 if backfill else None  # an equal share of all SMs, also of those in no domain
    groups = {
        f"domain{domain}": SMResourceOptions(asked, coscheduled_sm_count=2, backfill=backfill, locality_domain=domain)
        for domain in range(dev.locality_domains)
    }
    with dev.partition(**groups) as parts:
        assert [parts[name].sm_count for name in groups] == counts
        assert [len(proof.sm_ids) for proof in parts.verify().contexts][:2] == counts


def test_domains_that_have_nothing_left_are_refused(sim: Machines) -> None:
    sim("b200", driver="13.4")
    whole = Device(0).resources.sm
    error = refusal(SplitError, lambda: split(whole, [None, None], locality_domain=[0, 7]))
    assert error.suggestion is None
    assert "no smaller request fits" in str(error)
    assert "backfill" not in str(error)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"locality_domain": 0},
        {"locality_domain": [0, None]},
        {"locality_domain": [0, 1], "backfill": [False, True]},
    ],
)
def test_all_that_is_left_goes_to_one_group_or_to_one_of_each_domain(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"only one group can have all remaining SMs, or one in each locality_domain"):
        SMResourceOptions([None, None], **fields)


@pytest.mark.parametrize(("gpu", "driver"), [("b200", "13.1"), ("b200", "13.4"), ("h200", "13.4")])
def test_a_driver_or_device_without_locality_domains_has_one(sim: Machines, gpu: str, driver: str) -> None:
    sim(gpu, driver=driver)
    assert Device(0).locality_domains == (2 if (gpu, driver) == ("b200", "13.4") else 1)


def test_a_suggestion_keeps_to_the_locality_domains(sim: Machines) -> None:
    sim("b200", driver="13.4")
    whole = Device(0).resources.sm
    chance = random.Random(1)
    kept = 0
    for _ in range(40):
        number = chance.randint(2, 4)
        asked = [chance.randint(1, 160 // number) for _ in range(number)]
        domains = [chance.choice([0, 1]) for _ in range(number)]
        try:
            split(whole, asked, locality_domain=domains)
        except SplitError as error:
            suggestion = error.suggestion
        else:
            continue
        assert suggestion is not None
        assert suggestion.locality_domain == (tuple(domains) if len(set(domains)) > 1 else domains[0])
        assert tuple(group.sm_count for group in whole.split(suggestion)[0]) == suggestion.count
        kept += 1
    assert kept >= 8


@pytest.mark.parametrize("driver", [driver for driver in DRIVERS if driver != "13.4"])
def test_a_locality_domain_needs_a_driver_that_knows_them(sim: Machines, driver: str) -> None:
    sim("b200", driver=driver)
    whole = Device(0).resources.sm
    error = refusal(FeatureNotSupported, lambda: split(whole, 16, locality_domain=0))
    assert (error.needs, error.found) == ("13.4", driver)


@pytest.mark.parametrize("driver", ["12.4", "13.0", "13.1", "13.4"])
@pytest.mark.parametrize("counts", [[6], [4, 6], [6, 10], [4], [54, 54]])
def test_where_pairs_are_the_alignment_every_even_count_is_exact(
    sim: Callable[..., Any], driver: str, counts: list[int]
) -> None:
    sim("a100", driver=driver)
    groups, remainder = split(Device(0).resources.sm, counts)
    assert [group.sm_count for group in groups] == counts
    assert remainder.sm_count == 108 - sum(counts)
    (smallest,), _ = split(Device(0).resources.sm, [1])
    assert smallest.sm_count == smallest.device.resources.sm.min_partition_size == 4
    (pair,), _ = split(Device(0).resources.sm, [2], coscheduled_sm_count=2)
    assert pair.sm_count == 2


@pytest.mark.parametrize("counts", [[8] * 100_000, [1_000_000] * 5_000])
def test_a_request_beyond_all_bounds_is_refused_at_once(sim: Callable[..., Any], counts: list[int]) -> None:
    sim("h200", driver="13.0")
    whole = Device(0).resources.sm
    error = refusal(SplitError, lambda: split(whole, counts))
    assert len(str(error)) < 500
    assert error.suggestion is None
    assert f"no request of {len(counts)} groups fits, 16 of the smallest size do" in str(error)


def test_an_open_group_gets_no_fewer_sms_than_could_be_asked_for(sim: Callable[..., Any]) -> None:
    """Four are left inside of 16, and the smallest group there has eight: nothing could ask for them again."""
    sim("h200", driver="13.1")
    (outer, *_), _ = Device(0).resources.sm.split(SMResourceOptions([16, 39, 8, None], coscheduled_sm_count=2))
    wanted = {"coscheduled_sm_count": [None, 16, 4], "backfill": [False, True, False]}
    with pytest.raises(SplitError):
        outer.split(SMResourceOptions([5, 4, None], **wanted))
    groups, rest = outer.split(SMResourceOptions([5, None], coscheduled_sm_count=[None, 2]))
    assert [group.sm_count for group in (*groups, rest)] == [8, 8, 0]
