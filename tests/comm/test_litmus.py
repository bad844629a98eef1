"""The hand-offs of the kernels as litmus tests: the memory model of PTX forbids what would be wrong, and allows it
without any one of their ordering primitives.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace

import pytest

from .cpu_kernels import ORDERING, ORDERINGS
from .ptx_model import Step, Thread, executions


@dataclass(frozen=True)
class Litmus:
    """A pattern, and what must not come of it.

    load: the one, by thread and step, that must not return `wrong` when all others have returned what they wait for.
    sources: of each thread, the functions of the kernels that have its ordering primitives, in order.
    """

    threads: tuple[Thread, ...]
    load: tuple[int, int]
    sources: tuple[tuple[str, ...], ...]
    wrong: int = 0


def thread(device: int, block: int, *steps: str) -> Thread:
    """Of steps in words: a primitive, and where it is; = what it stores or adds; == what it has to load."""
    return Thread(device, block, tuple(map(step, steps)))


def step(text: str) -> Step:
    found = re.fullmatch(r"(\w+)(?: (\w+))?(?: = (\d))?(?: == (\d))?", text)
    assert found is not None, text
    name, place, value, seen = found.groups()
    return Step(name, place or "", int(value or 0), None if seen is None else int(seen))


LITMUS = {
    "START hands on an input": Litmus(
        (
            thread(0, 0, "write input = 1", "store_release START = 1"),
            thread(1, 0, "load_acquire START == 1", "all_of_block block"),
            thread(1, 0, "all_of_block block", "fence_bulk", "bulk_load input"),
        ),
        (2, 2),
        (
            ("two_exchange:exchange_shares",),
            ("guard:wait_flag", "two_exchange:exchange_shares"),
            ("two_exchange:exchange_shares", "two_exchange:move"),
        ),
    ),
    "START hands on an address": Litmus(
        (
            thread(0, 0, "store_relaxed MAILBOX = 1", "store_release START = 1"),
            thread(1, 0, "load_acquire START == 1", "all_of_block block"),
            thread(1, 0, "all_of_block block", "load_relaxed MAILBOX"),
        ),
        (2, 1),
        (
            ("two_exchange:exchange_shares",),
            ("guard:wait_flag", "two_exchange:exchange_shares"),
            ("two_exchange:exchange_shares",),
        ),
    ),
    # The end of the first kernel of a plan hands on to its copies what that kernel knows.
    "a plan hands its staged memory on to the next plan": Litmus(
        (
            thread(0, 0, "write staged = 1", "store_release word = 1"),
            thread(0, 1, "load_acquire word == 1", "read staged"),
        ),
        (1, 1),
        (("guard:give_back",), ("guard:hold",)),
    ),
    "a sum goes from shared memory to a copy": Litmus(
        (
            thread(0, 0, "write tile = 1", "fence_bulk_shared", "barrier_arrive summed = 1"),
            thread(0, 0, "barrier_try_wait summed == 1", "bulk_load tile"),
        ),
        (1, 1),
        (("two_exchange:sum",), ("two_exchange:wait_barrier",)),
    ),
    "END hands on what copies of all blocks have stored": Litmus(
        (
            thread(0, 0, "bulk_store output = 1", "bulk_wait", "fence_bulk", "fence_device", "add_own word = 1"),
            thread(0, 1, "add_own word = 1 == 1", "fence_device", "all_of_block block"),
            thread(0, 1, "all_of_block block", "store_release END = 1"),
            thread(1, 0, "load_acquire END == 1", "read output"),
        ),
        (3, 1),
        (
            ("two_exchange:move", "two_exchange:exchange_shares"),
            ("two_exchange:exchange_shares",),
            ("two_exchange:exchange_shares",),
            ("guard:wait_flag",),
        ),
    ),
    "START hands on what all blocks have sent": Litmus(
        (
            thread(0, 0, "write staged = 1", "sync_block sent"),
            thread(0, 0, "sync_block sent", "fence_device", "add_own word = 1"),
            thread(0, 1, "add_own word = 1 == 1", "fence_device", "all_of_block block"),
            thread(0, 1, "all_of_block block", "store_release START = 1"),
            thread(1, 0, "load_acquire START == 1", "all_of_block block"),
            thread(1, 0, "all_of_block block", "fence_bulk", "bulk_load staged"),
        ),
        (5, 2),
        (
            ("two_exchange:exchange_shares",),
            ("two_exchange:exchange_shares",),
            ("two_exchange:exchange_shares",),
            ("two_exchange:exchange_shares",),
            ("guard:wait_flag", "two_exchange:exchange_shares"),
            ("two_exchange:exchange_shares", "two_exchange:move"),
        ),
    ),
    # To the copies of all threads, of which others than this one have waited for it.
    "END hands on a sum that is fetched": Litmus(
        (
            thread(0, 0, "bulk_store sum = 1", "bulk_wait", "fence_bulk", "fence_device", "add_own word = 1"),
            thread(0, 1, "add_own word = 1 == 1", "fence_device", "all_of_block block"),
            thread(0, 1, "all_of_block block", "store_release END = 1"),
            thread(1, 0, "load_acquire END == 1", "all_of_block block"),
            thread(1, 0, "all_of_block block", "read sum"),
        ),
        (4, 1),
        (
            ("two_exchange:move", "two_exchange:exchange_shares"),
            ("two_exchange:exchange_shares",),
            ("two_exchange:exchange_shares",),
            ("guard:wait_flag", "two_exchange:exchange_shares"),
            ("two_exchange:exchange_shares",),
        ),
    ),
    # Of the same tensor, where a call works in place: what one block has sent, and what another one fetches.
    "START to the rank itself lets what was sent be overwritten": Litmus(
        (
            thread(0, 0, "read tensor", "sync_block sent"),
            thread(0, 0, "sync_block sent", "fence_device", "add_own word = 1"),
            thread(0, 1, "add_own word = 1 == 1", "fence_device", "all_of_block block"),
            thread(0, 1, "all_of_block block", "store_release START = 1"),
            thread(0, 2, "load_acquire START == 1", "all_of_block block"),
            thread(0, 2, "all_of_block block", "write tensor = 1"),
        ),
        (0, 0),
        (
            ("two_exchange:exchange_shares",),
            ("two_exchange:exchange_shares",),
            ("two_exchange:exchange_shares",),
            ("two_exchange:exchange_shares",),
            ("guard:wait_flag", "two_exchange:exchange_shares"),
            ("two_exchange:exchange_shares",),
        ),
        wrong=1,
    ),
    # In place: two threads of a warp read a vector, and one of them stores the sum there.
    "a warp has read what it overwrites": Litmus(
        (
            thread(0, 0, "read vector", "sync_warp read"),
            thread(0, 0, "sync_warp read", "write vector = 1"),
        ),
        (0, 0),
        (("one_exchange:receive_batch",), ("one_exchange:receive_batch",)),
        wrong=1,
    ),
    "DATA hands on the parts of a piece": Litmus(
        (
            thread(0, 0, "write piece = 1", "sync_block parts"),
            thread(0, 0, "sync_block parts", "fence_system", "add_own word = 1"),
            thread(0, 1, "add_own word = 1 == 1", "fence_device", "all_of_block block"),
            thread(0, 1, "all_of_block block", "store_release DATA = 1"),
            thread(1, 0, "load_acquire DATA == 1", "read piece"),
        ),
        (4, 1),
        (
            ("nodes:parts_are_sent",),
            ("nodes:parts_are_sent",),
            ("nodes:exchange_pieces",),
            ("nodes:exchange_pieces", "nodes:count_data"),
            ("nodes:wait_signal",),
        ),
    ),
    "READY lets a piece be overwritten": Litmus(
        (
            thread(0, 0, "read piece", "kernel_ends", "store_release READY = 1"),
            thread(1, 0, "load_acquire READY == 1", "all_of_block block"),
            thread(1, 0, "all_of_block block", "write piece = 1"),
        ),
        (0, 0),
        (("nodes:count_ready",), ("nodes:wait_signal", "nodes:exchange_pieces"), ("nodes:exchange_pieces",)),
        wrong=1,
    ),
    # What the copy of a sum reads, and what the copy of another tile writes.
    "a tile is filled again when it has been read": Litmus(
        (thread(0, 0, "bulk_load tile", "bulk_wait_read", "bulk_store tile = 1"),),
        (0, 0),
        (("two_exchange:move",),),
        wrong=1,
    ),
    # The block has asked for a fault in vain, by an atomic operation, and another one knows of a later fault.
    "a block that gives up sees which blocks have ended": Litmus(
        (
            thread(0, 0, "store_relaxed note = 1", "fence_device", "add_own fault = 0 == 0"),
            thread(0, 1, "add_own fault = 1"),
            thread(0, 2, "load_own fault == 1", "fence_device", "load_relaxed note"),
        ),
        (2, 2),
        (("two_exchange:exchange_shares",), (), ("two_exchange:spoil_for_ended",)),
    ),
    "a fault has a detail": Litmus(
        (
            thread(0, 0, "store_relaxed detail = 1", "store_release fault = 1"),
            thread(1, 0, "load_acquire fault == 1", "load_relaxed detail"),
        ),
        (1, 1),
        (("guard:write_record",), ()),
    ),
}


# Programs whose outcomes are known, by what they show of the model: what the loads return, thread by thread.
KNOWN: dict[str, tuple[tuple[Thread, ...], tuple[int, ...], bool]] = {
    "messages pass by release and acquire": (
        (thread(0, 0, "write x = 1", "store_release y = 1"), thread(1, 0, "load_acquire y", "read x")),
        (1, 0),
        False,
    ),
    "not without": (
        (thread(0, 0, "store_relaxed x = 1", "store_relaxed y = 1"), thread(1, 0, "load_relaxed y", "load_relaxed x")),
        (1, 0),
        True,
    ),
    "a fence of a device does not pass them to another one": (
        (
            thread(0, 0, "write x = 1", "fence_device", "store_relaxed y = 1"),
            thread(1, 0, "load_relaxed y", "fence_device", "read x"),
        ),
        (1, 0),
        True,
    ),
    "one of the system does": (
        (
            thread(0, 0, "write x = 1", "fence_system", "store_relaxed y = 1"),
            thread(1, 0, "load_relaxed y", "fence_system", "read x"),
        ),
        (1, 0),
        False,
    ),
    "through an atomic operation of a third thread": (
        (
            thread(0, 0, "write x = 1", "fence_device", "add_own y = 1"),
            thread(0, 1, "add_own y = 1 == 1"),
            thread(0, 2, "load_own y == 2", "fence_device", "read x"),
        ),
        (1, 2, 0),
        False,
    ),
    "stores are buffered": (
        (
            thread(0, 0, "store_release x = 1", "load_acquire y"),
            thread(0, 1, "store_release y = 1", "load_acquire x"),
        ),
        (0, 0),
        True,
    ),
    "two readers may disagree": (
        (
            thread(0, 0, "store_relaxed x = 1"),
            thread(0, 1, "store_relaxed y = 1"),
            thread(0, 2, "load_acquire x", "load_acquire y"),
            thread(0, 3, "load_acquire y", "load_acquire x"),
        ),
        (1, 0, 1, 0),
        True,
    ),
    "one place has one order": (
        (thread(0, 0, "store_relaxed x = 1"), thread(1, 0, "load_relaxed x", "load_relaxed x")),
        (1, 0),
        False,
    ),
    "one of two atomic operations is the first": (
        (thread(0, 0, "add_own x = 1"), thread(0, 1, "add_own x = 2")),
        (0, 0),
        False,
    ),
    "of loads and stores in their place, both may be": (
        (thread(0, 0, "load_own x", "store_own x = 1"), thread(0, 1, "load_own x", "store_own x = 2")),
        (0, 0),
        True,
    ),
    # Why two slots of packets are enough.
    "a store behind a load does not change what was loaded": (
        (
            thread(0, 0, "load_relaxed slot", "kernel_ends", "store_relaxed packet = 1"),
            thread(1, 0, "load_relaxed packet", "branches", "store_relaxed slot = 1"),
        ),
        (1, 1),
        False,
    ),
    "but for loads that nothing waits for": (
        (
            thread(0, 0, "load_relaxed slot", "store_relaxed packet = 1"),
            thread(1, 0, "load_relaxed packet", "branches", "store_relaxed slot = 1"),
        ),
        (1, 1),
        True,
    ),
    "a copy is not seen without a fence of its proxy": (
        (thread(0, 0, "bulk_store x = 1", "bulk_wait", "read x"),),
        (0,),
        True,
    ),
    "a copy is seen behind one": (
        (thread(0, 0, "bulk_store x = 1", "bulk_wait", "fence_bulk", "read x"),),
        (0,),
        False,
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_outcomes_of_the_model_are_those_that_are_known(name: str) -> None:
    threads, outcome, is_allowed = KNOWN[name]
    outcomes = {tuple(found[at] for at in sorted(found)) for found in executions(threads)}
    assert (outcome in outcomes) is is_allowed, sorted(outcomes)


def results(litmus: Litmus) -> set[int]:
    return {found[litmus.load] for found in executions(litmus.threads)}


@pytest.mark.parametrize("name", LITMUS)
def test_the_model_allows_what_is_right_and_forbids_what_is_wrong(name: str) -> None:
    litmus = LITMUS[name]
    assert results(litmus) == {1 - litmus.wrong}


def weaker(litmus: Litmus, thread: int, at: int) -> Litmus:
    """Without one of its ordering primitives: what is left of it."""
    steps = list(litmus.threads[thread].steps)
    left = ORDERING[steps[at].name]
    steps[at] = replace(steps[at], name="nothing" if left in ("nothing", "alone") else left)
    threads = list(litmus.threads)
    threads[thread] = replace(threads[thread], steps=tuple(steps))
    return replace(litmus, threads=tuple(threads))


ORDERED = [
    (name, thread, at)
    for name, litmus in LITMUS.items()
    for thread, one in enumerate(litmus.threads)
    for at, step in enumerate(one.steps)
    if step.name in ORDERING
]


@pytest.mark.parametrize(("name", "thread", "at"), ORDERED)
def test_without_any_ordering_the_model_allows_what_is_wrong(name: str, thread: int, at: int) -> None:
    litmus = LITMUS[name]
    assert litmus.wrong in results(weaker(litmus, thread, at)), litmus.threads[thread].steps[at]


@pytest.mark.parametrize("name", LITMUS)
def test_the_kernels_have_the_primitives_of_the_pattern_in_its_order(name: str) -> None:
    litmus = LITMUS[name]
    for thread, functions in zip(litmus.threads, litmus.sources, strict=True):
        there = iter([one for function in functions for one in primitives_of(function)])
        wanted = [step.name for step in thread.steps if step.name in ORDERING] if functions else []
        assert all(one in there for one in wanted), (wanted, functions)


# The orderings that hand nothing on by the memory model, and what they are for.
OTHERS = {
    "guard: of_first in begin_call": "a word that the threads of a block share",
    "one_exchange: all_of_block in receive_batch": "no warp stores before the headers of all ranks agree",
    "one_exchange: wait_for_previous_kernel in one_exchange": "the order of kernels in a stream",
    "one_exchange: all_of_block in one_exchange": "no thread runs when the word is given back",
    "one_exchange: sync_block in one_exchange": "no thread runs when the word is given back",
    "two_exchange: all_of_block in spoil_for_ended": "all threads of a block overwrite a share",
    "two_exchange: barrier_init_done in exchange_shares": "the copy engine knows the barriers",
}


def test_every_ordering_of_the_kernels_is_in_a_pattern_or_has_another_purpose() -> None:
    used = {
        f"{function.replace(':', ': ')} {step.name}"
        for litmus in LITMUS.values()
        for thread, functions in zip(litmus.threads, litmus.sources, strict=True)
        for step, function in itertools.product(thread.steps, functions)
    }
    missing = []
    for ordering in ORDERINGS:
        file, primitive, function = re.fullmatch(r"(\w+): (\w+) in (\w+)(?:, \d+)?", ordering).groups()  # type: ignore[union-attr]
        if f"{file}: {function} {primitive}" not in used:
            missing.append(ordering)
    assert missing == list(OTHERS)


def primitives_of(function: str) -> list[str]:
    """The ordering primitives that a function of the kernels calls, in order."""
    file, _, name = function.partition(":")
    found = [re.fullmatch(rf"{file}: (\w+) in {name}(?:, \d+)?", one) for one in ORDERINGS]
    assert any(found), function
    return [one[1] for one in found if one is not None]
