"""Random splits on every card and driver: disjoint, complete, at least what was asked, and the same again.

Each case is told by its seed, which stands in the name of the test: the same name gives the same requests.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from cuda_gctx import Device, SMResource, SMResourceOptions, SplitError

from ..common import DRIVERS, green
from ..raw import RESOURCE_BYTES, Probe

PROFILES = ["h200", "h100", "a100", "l40s", "rtx4090", "b200", "rtx5080", "thor"]
CASES = 12


def random_request(chance: random.Random, whole: SMResource) -> SMResourceOptions:
    """One to six groups that often fit, sometimes do not, in every mix of options."""
    number = chance.choice([1, 1, 2, 2, 3, 3, 4, 5, 6])
    share = max(2, int(whole.sm_count / number * chance.choice([0.4, 0.8, 1.0, 1.2])))
    counts: list[int | None] = [chance.randint(1, share) for _ in range(number)]
    if chance.random() < 0.3:
        counts[chance.randrange(number)] = None
    style = chance.random()
    backfill: bool | list[bool] = False
    coscheduled: int | list[int | None] | None = None
    if style < 0.25:
        backfill = True
    elif style < 0.5:
        backfill = [chance.random() < 0.5 for _ in counts]
    elif style < 0.65:
        coscheduled = 2
    elif style < 0.75:
        coscheduled = [chance.choice([None, 2, whole.coscheduled_alignment]) for _ in counts]
    if chance.random() < 0.8:  # an odd count cannot be exact
        exact = [backfill] * number if isinstance(backfill, bool) else backfill
        counts = [n + n % 2 if n is not None and e else n for n, e in zip(counts, exact, strict=True)]
    return SMResourceOptions(counts, coscheduled, None, backfill)


def refused_with(resource: SMResource, options: SMResourceOptions, dry_run: bool = False) -> SMResourceOptions | None:
    """The suggestion of a refusal, which always has one; None if the split is possible."""
    try:
        resource.split(options, dry_run=dry_run)
    except SplitError as error:
        if isinstance(error.suggestion, SMResourceOptions):
            return error.suggestion
        raise
    return None


def per_group(options: SMResourceOptions) -> list[tuple[int | None, int | None, bool]]:
    """Count, co-scheduling and backfill of each group."""
    counts = options.count
    assert isinstance(counts, tuple)
    coscheduled, backfill = options.coscheduled_sm_count, options.backfill
    return list(
        zip(
            counts,
            coscheduled if isinstance(coscheduled, tuple) else [coscheduled] * len(counts),
            backfill if isinstance(backfill, tuple) else [backfill] * len(counts),
            strict=True,
        )
    )


def bytes_of(resource: SMResource) -> bytes:
    return ctypes.string_at(resource.handle, RESOURCE_BYTES * resource.unit_count) if resource.unit_count else b""


def check_counts(whole: SMResource, options: SMResourceOptions, groups: list[SMResource], rest: SMResource) -> None:
    asked = per_group(options)
    assert len(groups) == len(asked)
    for group, (count, coscheduled, exact) in zip(groups, asked, strict=True):
        assert group.requested == count
        assert group.sm_count > 0
        grain = 2 if exact else coscheduled or whole.coscheduled_alignment
        assert group.sm_count % grain == 0
        if count is not None:
            assert group.sm_count == count if exact else group.sm_count >= count
    assert sum(group.sm_count for group in groups) + rest.sm_count == whole.sm_count
    for a, b in combinations([*groups, rest], 2):
        assert a.overlaps(b) is False


def check_sms(dev: Device, probe: Probe, pieces: list[SMResource], whole: set[int]) -> None:
    """Disjoint and complete by what a kernel sees."""
    seen = []
    for piece in pieces:
        if piece.sm_count:
            with green(dev, piece) as ctx:
                seen.append(probe.sms(ctx))
                assert len(seen[-1]) == piece.sm_count
    assert sum(map(len, seen)) == len(whole)
    assert set().union(*seen) == whole


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("profile", PROFILES)
def test_random_splits_keep_their_promises(sim: Callable[..., Any], profile: str, driver: str) -> None:
    sim(profile, driver=driver)
    dev = Device(0)
    whole = dev.resources.sm
    chance = random.Random(f"{profile}@{driver}")
    refused = 0
    with Probe(dev) as probe:
        all_sms = probe.sms(dev.context)
        for case in range(CASES):
            options = random_request(chance, whole)
            print(f"seed {profile}@{driver}, case {case}: {options}")
            suggestion = refused_with(whole, options)
            if suggestion is not None:
                refused += 1
                print(f"  refused, suggestion {suggestion}")
                assert refused_with(whole, options, dry_run=True) == suggestion
                options = suggestion
            groups, rest = whole.split(options)
            check_counts(whole, options, groups, rest)
            check_sms(dev, probe, [*groups, rest], all_sms)
            dry, dry_rest = whole.split(options, dry_run=True)
            again, rest_again = whole.split(options)
            for real, told, repeated in zip([*groups, rest], [*dry, dry_rest], [*again, rest_again], strict=True):
                assert (told.sm_count, told.strategy) == (real.sm_count, real.strategy)
                assert bytes_of(repeated) == bytes_of(real)
    assert refused < CASES


@pytest.mark.parametrize("driver", ["12.4", "13.0", "13.4"])
@pytest.mark.parametrize("profile", ["h200", "a100", "b200"])
def test_random_splits_of_what_a_split_gave_keep_their_promises(
    sim: Callable[..., Any], profile: str, driver: str
) -> None:
    sim(profile, driver=driver)
    dev = Device(0)
    whole = dev.resources.sm
    chance = random.Random(f"{profile}@{driver} again")
    for case in range(CASES):
        groups, rest = whole.split(SMResourceOptions([chance.randint(1, whole.sm_count // 3), 8]))
        outer = chance.choice([groups[0], rest])
        options = random_request(chance, outer)
        print(f"seed {profile}@{driver} again, case {case}: {outer} into {options}")
        suggestion = refused_with(outer, options)
        inner, left = outer.split(suggestion or options)
        assert sum(piece.sm_count for piece in inner) + left.sm_count == outer.sm_count
        for a, b in combinations([*inner, left], 2):
            assert a.overlaps(b) is False
        for piece in inner:
            assert piece.overlaps(outer) is True
            assert piece.overlaps(groups[1]) is False
