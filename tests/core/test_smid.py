"""Proof of isolation: a kernel that reads %smid sees exactly the SMs that a context was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuda_gctx import Device, SMResourceOptions

from ..common import green, split
from ..raw import Probe


def test_three_uneven_contexts_run_on_disjoint_sms_of_the_realised_counts(dev: Device) -> None:
    groups, remainder = split(dev.resources.sm, [8, 16, 24])
    contexts = [green(dev, group) for group in [*groups, remainder]]
    with Probe(dev) as probe:
        seen = [probe.sms(ctx) for ctx in contexts]
        assert [len(sms) for sms in seen] == [piece.sm_count for piece in [*groups, remainder]]
        assert set().union(*seen) == probe.sms(dev.context)
        assert sum(map(len, seen)) == dev.sm_count
    for ctx in contexts:
        ctx.close()


def test_exact_groups_run_on_exactly_their_sms(dev: Device) -> None:
    groups, _ = split(dev.resources.sm, [10, 6], backfill=True)
    with Probe(dev) as probe, green(dev, groups[0]) as a, green(dev, groups[1]) as b:
        first, second = probe.sms(a), probe.sms(b)
    assert (len(first), len(second)) == (10, 6)
    assert not first & second


def test_groups_of_one_split_together_are_one_context_over_all_their_sms(dev: Device) -> None:
    groups, _ = split(dev.resources.sm, [8, 16, 24])
    with Probe(dev) as probe:
        with green(dev, groups[0]) as a, green(dev, groups[2]) as c:
            apart = probe.sms(a) | probe.sms(c)
        with green(dev, groups[0], groups[2]) as both:
            assert both.sm_count == groups[0].sm_count + groups[2].sm_count
            assert probe.sms(both) == apart


def test_pieces_of_a_group_run_inside_it(dev: Device) -> None:
    (group, other), _ = split(dev.resources.sm, [48, 16])
    (inner,), left = split(group, 16)
    with Probe(dev) as probe:
        with green(dev, group) as outer:
            allowed = probe.sms(outer)
        with green(dev, inner) as a, green(dev, left) as b, green(dev, other) as c:
            first, second, third = probe.sms(a), probe.sms(b), probe.sms(c)
    assert first | second == allowed
    assert not first & second
    assert not third & allowed


def test_a_stream_works_on_the_sms_of_its_context_after_that_is_closed(dev: Device) -> None:
    (group,), _ = split(dev.resources.sm, 16)
    ctx = green(dev, group)
    with Probe(dev) as probe:
        before = probe.sms(ctx)
        with ctx.create_stream() as stream, dev.context.current():
            ctx.close()
            probe.launch(stream)
            stream.sync()
            assert {smid for smid, *_ in probe.records()} == before


def test_a_dry_run_and_the_real_split_agree_on_what_runs_where(sim: Callable[..., Any]) -> None:
    sim("h200", driver="12.4")
    dev = Device(0)
    asked = SMResourceOptions([16, 10], backfill=[False, True])
    dry, dry_rest = dev.resources.sm.split(asked, dry_run=True)
    groups, remainder = dev.resources.sm.split(asked)
    contexts = [green(dev, group) for group in [*groups, remainder]]
    with Probe(dev) as probe:
        seen = [probe.sms(ctx) for ctx in contexts]
    assert [len(sms) for sms in seen] == [piece.sm_count for piece in [*dry, dry_rest]]
    assert sum(map(len, seen)) == len(set().union(*seen)) == dev.sm_count
    for ctx in contexts:
        ctx.close()
