"""Who shares SMs with whom: reported where it is known, never denied where it is not, and refused or warned of in
contexts."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import Context, Device, ResourceOverlapError, ResourceOverlapWarning

from ..common import DRIVERS, green, refusal, split
from ..raw import Probe, Raw


def test_groups_of_one_split_are_disjoint(dev: Device) -> None:
    groups, remainder = split(dev.resources.sm, [8, 16])
    assert groups[0].overlaps(groups[1]) is False
    assert groups[1].overlaps(remainder) is False


def test_a_resource_overlaps_itself_its_device_and_its_context(dev: Device) -> None:
    (group,), remainder = split(dev.resources.sm, 16)
    assert group.overlaps(group) is True
    assert group.overlaps(dev.resources.sm) is True
    assert dev.resources.sm.overlaps(remainder) is True
    with green(dev, group) as ctx:
        assert ctx.resources.sm.overlaps(group) is True
        assert group.overlaps(ctx.resources.sm) is True
        assert ctx.resources.sm.overlaps(remainder) is False
    assert dev.context.resources.sm.overlaps(group) is True


@pytest.mark.parametrize("driver", DRIVERS)
def test_two_separate_splits_are_never_called_disjoint(sim: Callable[..., Any], driver: str) -> None:
    sim("h200", driver=driver)
    whole = Device(0).resources.sm
    requests: list[tuple[Any, dict[str, Any]]] = [
        (8, {}),
        ([8, 16, 24], {}),
        ([16, 16], {}),
        (10, {"backfill": True}),
        ([10, 6], {"backfill": True}),
        (64, {}),
        ([16, 10], {"backfill": [False, True]}),
    ]
    splits = []
    for count, options in requests:
        groups, remainder = split(whole, count, **options)
        splits.append([*groups, remainder])
    for number, pieces in enumerate(splits):
        for others in splits[:number]:
            for piece in pieces:
                for other in others:
                    assert piece.overlaps(other) in (True, None)
                    assert piece.overlaps(other) == other.overlaps(piece)


def test_what_the_answer_says_of_two_splits_is_true(dev: Device) -> None:
    (small,), _ = split(dev.resources.sm, 8)
    (large,), _ = split(dev.resources.sm, 16)
    (exact,), rest = split(dev.resources.sm, 10, backfill=True)
    pieces = [small, large, exact, rest]
    with Probe(dev) as probe, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceOverlapWarning)
        seen = []
        for piece in pieces:
            with green(dev, piece) as ctx:
                seen.append(probe.sms(ctx))
    for a, sms in zip(pieces, seen, strict=True):
        for b, others in zip(pieces, seen, strict=True):
            assert a.overlaps(b) in (None, bool(sms & others))


def test_two_sets_too_large_to_be_disjoint_are_known_to_overlap(dev: Device) -> None:
    half = dev.sm_count // 2 + 2
    (one,), _ = split(dev.resources.sm, half - half % 2, backfill=True)
    (other,), _ = split(dev.resources.sm, half - half % 2 + 2, backfill=True)
    assert one.overlaps(other) is True


def test_pieces_of_a_group_are_known_after_an_equal_split(dev: Device) -> None:
    for _ in range(2):
        (group, other), _ = split(dev.resources.sm, [48, 16])
        (piece,), left = split(group, 16)
        assert piece.overlaps(group) is True
        assert left.overlaps(group) is True
        assert piece.overlaps(other) is False


def test_devices_do_not_overlap(sim: Callable[..., Any]) -> None:
    sim("h200", devices=2)
    first, second = Device(0).resources.sm, Device(1).resources.sm
    assert first.overlaps(second) is False
    (a,), _ = split(first, 8)
    (b,), _ = split(second, 8)
    assert a.overlaps(b) is False


@pytest.mark.parametrize("wrong", [None, 1, "group", object()])
def test_overlap_is_asked_of_resources_alone(dev: Device, wrong: Any) -> None:
    with pytest.raises(TypeError):
        dev.resources.sm.overlaps(wrong)


# ---- in one context


def test_the_same_resource_twice_in_one_context_is_refused(dev: Device) -> None:
    (group, other), remainder = split(dev.resources.sm, [8, 16])
    (equal, _), _ = split(dev.resources.sm, [8, 16])
    for twice in ([group, group], [group, other, group], [remainder, remainder], [group, equal]):
        with pytest.raises(ValueError, match="the same SMs"):
            green(dev, *twice)
    with pytest.raises(ValueError, match="the same SMs"):
        green(dev, group, dev.resources.sm)


def test_groups_of_two_splits_in_one_context_are_refused(dev: Device) -> None:
    (one,), _ = split(dev.resources.sm, 8)
    _, two = split(dev.resources.sm, 10, backfill=True)
    with pytest.raises(ValueError, match=r"one split|the same SMs"):
        green(dev, one, two)


# ---- with live contexts


def test_contexts_of_one_split_do_not_warn(dev: Device) -> None:
    groups, remainder = split(dev.resources.sm, [8, 16])
    contexts = [green(dev, piece, exclusive=True) for piece in [*groups, remainder]]
    for ctx in contexts:
        ctx.close()


def test_a_context_over_sms_of_a_live_one_warns_and_names_both(dev: Device) -> None:
    (group,), _ = split(dev.resources.sm, 16)
    (larger,), _ = split(dev.resources.sm, 24)
    with green(dev, group, name="decode"):
        with pytest.warns(ResourceOverlapWarning) as caught:
            over = green(dev, larger, name="prefill")
        # By what other tests have split off this device, it can be known.
        assert re.fullmatch(
            r"'prefill' \(24 SMs\) (may share|shares) SMs with 'decode' \(16 SMs\): "
            "close the other one first, or take all groups from one split",
            str(caught[0].message),
        )
        with pytest.warns(ResourceOverlapWarning) as caught:
            again = green(dev, group)
        assert str(caught[0].message).startswith(
            "an unnamed context (16 SMs) shares SMs with 'decode' (16 SMs) and 'prefill' (24 SMs): "
        )
        again.close()
        over.close()


def test_a_warning_names_three_contexts_and_the_number_of_others(dev: Device) -> None:
    groups, _ = split(dev.resources.sm, [8] * 6)
    contexts = [green(dev, group, name=f"part {number}") for number, group in enumerate(groups)]
    with pytest.warns(ResourceOverlapWarning) as caught:
        whole = green(dev, dev.resources.sm, name="all")
    assert (
        f"'all' ({dev.sm_count} SMs) shares SMs with 'part 0' (8 SMs), 'part 1' (8 SMs), 'part 2' (8 SMs) and 3 more: "
        in str(caught[0].message)
    )
    for ctx in [*contexts, whole]:
        ctx.close()


def test_a_warning_says_that_a_closed_context_is_kept_alive(dev: Device) -> None:
    (group,), _ = split(dev.resources.sm, 16)
    ctx = green(dev, group, name="decode")
    with ctx.create_stream():
        ctx.close()
        with pytest.warns(
            ResourceOverlapWarning, match=r"'decode' \(16 SMs, closed, and kept by a stream or an executable graph\)"
        ):
            green(dev, group).close()
    green(dev, group, exclusive=True).close()


def test_exclusive_raises_instead_and_makes_nothing(dev: Device) -> None:
    (group,), remainder = split(dev.resources.sm, 16)
    (larger,), _ = split(dev.resources.sm, 24)
    with green(dev, group, name="decode"):
        for resource in (larger, group, dev.resources.sm):
            error = refusal(ResourceOverlapError, lambda resource=resource: green(dev, resource, exclusive=True))
            assert isinstance(error, ValueError)
            assert "'decode'" in str(error)
        # The refused ones are not remembered.
        green(dev, remainder, exclusive=True).close()


def test_an_overlap_warning_as_an_error_makes_nothing(sim: Callable[..., Any]) -> None:
    machine = sim()
    dev = Device(0)
    (group,), remainder = split(dev.resources.sm, 16)
    with green(dev, group):
        made = machine.calls("cuGreenCtxCreate")
        refusal(ResourceOverlapWarning, lambda: green(dev, group))
        assert machine.calls("cuGreenCtxCreate") == made
        green(dev, remainder, exclusive=True).close()


def test_sms_are_free_again_when_the_context_is_gone(dev: Device) -> None:
    (group,), _ = split(dev.resources.sm, 16)
    green(dev, group).close()
    dropped = green(dev, group, exclusive=True)
    del dropped
    gc.collect()
    green(dev, group, exclusive=True).close()


def test_sms_are_taken_as_long_as_a_stream_uses_them(dev: Device) -> None:
    (group,), _ = split(dev.resources.sm, 16)
    ctx = green(dev, group)
    stream = ctx.create_stream()
    ctx.close()
    refusal(ResourceOverlapError, lambda: green(dev, group, exclusive=True))
    stream.close()
    green(dev, group, exclusive=True).close()


def test_the_primary_context_is_not_an_overlap(dev: Device) -> None:
    dev.context.create_stream().close()
    (group,), _ = split(dev.resources.sm, 16)
    green(dev, group, exclusive=True).close()


def test_contexts_of_other_makers_over_the_same_sms_are_beyond_knowing(dev: Device) -> None:
    (group,), _ = split(dev.resources.sm, 16)
    with Raw().green_context(16) as handle:
        foreign = Context.from_handle(handle).resources.sm
        assert foreign.overlaps(group) in (True, None)
        assert foreign.overlaps(dev.resources.sm) is True
