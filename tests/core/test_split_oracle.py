"""Random splits against an oracle that knows the documented rules and nothing of the planner.

CUDA_GCTX_SPLIT_REQUESTS sets how many requests are drawn, each tried on every driver, and CUDA_GCTX_SPLIT_SEED the
seed. A failure names the request, the card and the driver: no seed is needed to repeat it. A longer search, of minutes:

    CUDA_GCTX_SPLIT_REQUESTS=20000 python -m pytest tests/core/test_split_oracle.py
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import pytest

from cuda_gctx import Device, SMResource, SMResourceOptions, SplitError
from cuda_software_driver import driver_versions

from ..common import green, split
from ..raw import RESOURCE_BYTES, Probe, resource_bytes
from .split_oracle import Card, Group, groups_of, layouts, options_of, rounded_up

Machines = Callable[..., Any]

PROFILES = ["h200", "h100", "a100", "l40s", "rtx4090", "b200", "vr200", "rtx5080", "thor"]
VERSIONS = ["12.4", "12.8", "13.0", "13.1", "13.3", "13.4", "13.5"]
REQUESTS = int(os.environ.get("CUDA_GCTX_SPLIT_REQUESTS", "320"))
SEED = os.environ.get("CUDA_GCTX_SPLIT_SEED", "1")
ALIGNMENT_OFFSET = 104  # of smCoscheduledAlignment in CUdevResource
PROBED = 16  # one request in so many is looked at by a kernel


def random_request(chance: random.Random, sms: int, alignment: int) -> list[Group]:
    """One to six groups that often fit, sometimes do not, in every mix of options."""
    number = chance.choice([1, 1, 2, 2, 3, 3, 4, 5, 6])
    share = max(2, int(sms / number * chance.choice([0.4, 0.8, 1.0, 1.2, 1.6])))
    style = chance.choice(["plain", "plain", "exact", "some exact", "pairs", "together", "mixed"])
    groups = []
    for _ in range(number):
        count = chance.choice([chance.randint(1, share), chance.randint(1, share), chance.choice([8, 16, 24, 32, 64])])
        exact = style == "exact" or (style in ("some exact", "mixed") and chance.random() < 0.4)
        coscheduled = {
            "pairs": 2,
            "together": chance.choice([None, 2, alignment]),
            "mixed": chance.choice([None, None, 2, 4, 8, 16]),
        }.get(style)
        if exact and chance.random() < 0.9:  # an odd count cannot be exact
            count += count % 2
        groups.append(Group(count, coscheduled, exact))
    if chance.random() < 0.35:
        at = chance.randrange(number)
        groups[at] = Group(None, groups[at].coscheduled, groups[at].backfill)
    return groups


def answer_of(
    resource: SMResource, groups: Sequence[Group], dry_run: bool = False
) -> tuple[list[SMResource], SMResource] | SplitError:
    try:
        return resource.split(options_of(groups), dry_run=dry_run)
    except SplitError as error:
        return error.with_traceback(None)  # whose frames would keep driver objects alive


def bytes_of(resource: SMResource) -> bytes:
    return resource_bytes(resource) if resource.sm_count else b""


def check_pieces(card: Card, asked: Sequence[Group], groups: list[SMResource], rest: SMResource) -> None:
    assert sum(piece.sm_count for piece in [*groups, rest]) == card.sms
    again, rest_again = card.whole.split(options_of(asked))
    assert [bytes_of(piece) for piece in [*again, rest_again]] == [bytes_of(piece) for piece in [*groups, rest]]
    for a, b in combinations([*groups, rest], 2):
        assert a.overlaps(b) is False
    for piece, group in zip(groups, asked, strict=True):
        assert piece.requested == group.count
        if card.is_structured:
            # What such a driver takes into one context: parts of equal alignment.
            units = bytes_of(piece)
            starts = range(ALIGNMENT_OFFSET, len(units), RESOURCE_BYTES)
            assert len({units[at : at + 4] for at in starts}) == 1
        if card.is_promise(group):
            assert piece.coscheduled_alignment >= card.grain(group)
    reported = [Group(piece.sm_count, piece.coscheduled_alignment) for piece in groups]
    promised = answer_of(card.whole, reported, dry_run=True)
    assert not isinstance(promised, SplitError), f"what the groups report is refused: {promised}"
    assert [piece.sm_count for piece in promised[0]] == [piece.sm_count for piece in groups]
    # One split by count gives all groups units of one size, also those that ask for none. Its rest is in pairs.
    cut = [
        (group, piece.sm_count)
        for piece, group in zip(groups, asked, strict=True)
        if group.count is not None or not card.is_loose(group)
    ]
    of_units = not card.is_structured and all(count % card.alignment == 0 for _, count in cut)
    held = [(group, count) for group, count in cut if of_units or not card.is_loose(group)]
    if held and card.sets_suffice(*map(list, zip(*held, strict=True))):
        # What can be aligned is aligned.
        for piece, group in zip(groups, asked, strict=True):
            if not card.is_loose(group) and not card.is_promise(group):
                assert piece.coscheduled_alignment >= card.alignment


def check_sms(
    dev: Device, probe: Probe, card: Card, asked: Sequence[Group], groups: list[SMResource], rest: SMResource
) -> None:
    """Disjoint, complete and sitting together by what a kernel sees."""
    seen: list[set[int]] = []
    for piece in [*groups, rest]:
        if piece.sm_count:
            with green(dev, piece) as ctx:
                seen.append(probe.sms(ctx))
            assert len(seen[-1]) == piece.sm_count
    assert set().union(*seen) == set(range(card.sms))
    assert sum(map(len, seen)) == card.sms
    cluster_of = clusters(card.gpcs)
    for sms, group in zip(seen, asked, strict=False):
        if card.is_promise(group):
            held = [cluster_of[sm] for sm in sms]
            assert all(held.count(cluster) % card.grain(group) == 0 for cluster in set(held))


def clusters(gpcs: Sequence[int]) -> list[int]:
    """The GPC of each SM id: ids count across the GPCs, a TPC at a time, single TPCs last."""
    order = []
    for place in range(max(gpcs) // 2):
        order += [gpc for gpc, sms in enumerate(gpcs) if sms > 2 and sms // 2 > place]
    order += [gpc for gpc, sms in enumerate(gpcs) if sms == 2]
    return [gpc for gpc in order for _ in range(2)]


def check_refusal(card: Card, groups: Sequence[Group], error: SplitError) -> None:
    """A suggestion has every group, requests no more and fits; without one, the smallest counts do not fit."""
    if error.suggestion is None:
        assert card.expected(card.smallest([Group(group.count) for group in groups])) is None
        kept = False
    else:
        suggested = groups_of(error.suggestion)
        assert card.expected(suggested) is not None
        given, _ = card.whole.split(error.suggestion)
        assert all(group.count in (None, piece.sm_count) for piece, group in zip(given, suggested, strict=True))
        kept = all(
            (a.coscheduled, a.backfill) == (b.coscheduled, b.backfill) for a, b in zip(suggested, groups, strict=True)
        )
        for piece, group in zip(given, groups, strict=True):
            assert not kept or group.count is None or piece.sm_count <= rounded_up(card.size(group), card.step(group))
    if not kept:  # no counts fit with these options
        assert card.expected(card.smallest(groups)) is None


def check_request(
    dev: Device, probe: Probe, card: Card, groups: Sequence[Group], look: bool
) -> tuple[list[int] | None, str]:
    expected = card.expected(groups)
    answer = answer_of(card.whole, groups)
    dry = answer_of(card.whole, groups, dry_run=True)
    if isinstance(answer, SplitError):
        assert expected is None, f"refused: {answer}"
        assert isinstance(dry, SplitError)
        assert str(dry) == str(answer)
        check_refusal(card, groups, answer)
        return None, str(answer)
    assert not isinstance(dry, SplitError), dry
    pieces, rest = answer
    assert [piece.sm_count for piece in pieces] == expected
    foreseen = [
        (piece.sm_count, piece.strategy, piece.requested, piece.coscheduled_alignment) for piece in [*dry[0], dry[1]]
    ]
    assert foreseen == [
        (piece.sm_count, piece.strategy, piece.requested, piece.coscheduled_alignment) for piece in [*pieces, rest]
    ]
    check_pieces(card, groups, pieces, rest)
    if look:
        check_sms(dev, probe, card, groups, pieces, rest)
    return expected, ""


@pytest.mark.parametrize("profile", PROFILES)
def test_random_splits_agree_with_the_oracle_on_every_driver(sim: Machines, profile: str) -> None:
    chance = random.Random(f"{SEED} {profile}")
    requests: list[list[Group]] = []
    answers: list[list[tuple[str, list[int] | None, str]]] = []
    for version in VERSIONS:
        sim(profile, driver=version)
        dev = Device(0)
        major, minor = map(int, version.split("."))
        card = Card(dev.resources.sm, layouts()[profile], (major, minor))
        if not requests:
            count = REQUESTS // len(PROFILES)
            requests = [random_request(chance, card.sms, card.alignment) for _ in range(count)]
            answers = [[] for _ in requests]
        failures = []
        with Probe(dev) as probe:
            for number, groups in enumerate(requests):
                try:
                    answer, message = check_request(dev, probe, card, groups, number % PROBED == 0)
                    answers[number].append((version, answer, message))
                except AssertionError as failure:
                    failures.append(f"{profile}@{version} {options_of(groups)}: {failure}")
        assert not failures, f"{len(failures)} of {len(requests)}\n" + "\n".join(failures[:8])
    for groups, answered in zip(requests, answers, strict=True):
        request = f"{profile} {options_of(groups)}: {answered}"
        sizes = [answer for _, answer, _ in answered if answer is not None]
        if any(group.coscheduled in (4, 8, 16) for group in groups):
            # Only structured drivers seat sets that are smaller than the alignment; they may have more left for None.
            finite = [[n for n, group in zip(answer, groups, strict=True) if group.count] for answer in sizes]
            assert all(answer == finite[0] for answer in finite), request
            assert [sum(answer) for answer in sizes] == sorted(sum(answer) for answer in sizes), request
        else:
            assert all(answer == sizes[0] for answer in sizes), request
        for version, answer, message in answered:
            if answer is None and sizes:
                assert "13.1" in message, f"{profile}@{version} {options_of(groups)}: {message}"


@pytest.mark.parametrize("profile", PROFILES)
def test_random_splits_of_groups_and_remainders_give_what_there_is(sim: Machines, profile: str) -> None:
    """What asks for no co-scheduling is arithmetic, also where the layout is not known."""
    for version in VERSIONS:
        sim(profile, driver=version)
        whole = Device(0).resources.sm
        chance = random.Random(f"{SEED} {profile} again")
        for _ in range(max(1, REQUESTS // len(PROFILES) // 8)):
            (first, _), rest = split(whole, [chance.randint(1, whole.sm_count // 2), whole.min_partition_size])
            outer = chance.choice([first, rest])
            if outer.sm_count == 0:
                continue
            card = Card(outer, (outer.sm_count,), (12, 4))
            asked = [group for group in random_request(chance, outer.sm_count, 8) if not card.is_promise(group)]
            asked = [group for group in asked if group.count is not None] or [Group(2, None, True)]
            request = f"{profile}@{version} {outer!r} into {options_of(asked)}"
            answer = answer_of(outer, asked)
            dry = answer_of(outer, asked, dry_run=True)
            expected = card.expected(asked)
            if isinstance(answer, SplitError) or isinstance(dry, SplitError):
                assert expected is None, f"{request}: {answer}"
                assert str(answer) == str(dry), request
                continue
            assert [piece.sm_count for piece in answer[0]] == expected, request
            shown = [(piece.sm_count, piece.strategy) for piece in [*answer[0], answer[1]]]
            assert shown == [(piece.sm_count, piece.strategy) for piece in [*dry[0], dry[1]]], request
            for a, b in combinations([*answer[0], answer[1]], 2):
                assert a.overlaps(b) is False, request


def promise_of(resource: SMResource, options: SMResourceOptions) -> tuple[list[SMResource], SMResource] | None:
    """The pieces of a split whose groups can have promised what they report; None if it is refused."""
    try:
        groups, rest = resource.split(options)
    except SplitError:
        return None
    counts, reported = [group.sm_count for group in groups], [group.coscheduled_alignment for group in groups]
    promised, _ = resource.split(SMResourceOptions(counts, coscheduled_sm_count=reported), dry_run=True)
    assert [group.sm_count for group in promised] == counts
    return groups, rest


# More than 512 sets of SMs get a context in a longer search.
@pytest.mark.filterwarnings("ignore:.*green contexts of a device are idle:cuda_gctx.CUDAWarning")
@pytest.mark.parametrize("profile", PROFILES)
def test_what_groups_report_can_be_promised_on_every_driver(sim: Machines, profile: str) -> None:
    """Also inside a group or a remainder, and with larger sets preferred."""
    assert set(PROFILES) == layouts().keys()
    for version in driver_versions()[1:]:  # the first one has no green contexts
        sim(profile, driver=version)
        whole = Device(0).resources.sm
        chance = random.Random(f"{SEED} {profile} promises")
        for _ in range(REQUESTS // len(PROFILES) // 4):
            options = options_of(random_request(chance, whole.sm_count, whole.coscheduled_alignment))
            if chance.random() < 0.4:
                options = options.replace(preferred_coscheduled_sm_count=chance.choice([8, 16, 32]))
            pieces = promise_of(whole, options)
            if pieces is not None:
                groups, rest = pieces
                for outer in (groups[0], rest):
                    if outer.sm_count > whole.min_partition_size:
                        promise_of(
                            outer, options_of(random_request(chance, outer.sm_count, whole.coscheduled_alignment))
                        )


def test_the_oracle_counts_sets_as_a_search_does() -> None:
    """Counting places decides the same as trying every way to put the sets into the clusters of a small chip."""

    def search(left: tuple[int, ...], sets: tuple[int, ...]) -> bool:
        if not sets:
            return True
        tried = set()
        for at, sms in enumerate(left):
            if sms >= sets[0] and sms not in tried:
                tried.add(sms)
                if search((*left[:at], sms - sets[0], *left[at + 1 :]), sets[1:]):
                    return True
        return False

    chance = random.Random(SEED)
    for _ in range(300):
        gpcs = tuple(chance.choice([2, 6, 8, 10, 12, 16, 18]) for _ in range(3))
        sets = [(size, size * chance.randint(1, 2)) for size in chance.choices([4, 8, 16], k=chance.randint(1, 3))]
        card = Card(None, gpcs, (13, 1))  # type: ignore[arg-type]
        one_by_one = tuple(sorted((size for size, sms in sets for _ in range(sms // size)), reverse=True))
        assert card.sets_fit(sets) == search(tuple(sorted(gpcs)), one_by_one), (gpcs, sets)
