"""Every contender serves the same requests on a virtual clock, and does what its name says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up import VirtualCard, costs_of
from serving.contenders import CHUNKS, Chunked, decodes_for, mixed_chunks
from serving.entrants import ENTRANTS
from serving.loads import LOADS, Load, load_of
from serving.loop import Contender, Limits, Record, Serving
from serving.policy import BATCHES, CONTEXTS, PASTS, TOKENS, Following, counted_as
from serving.shapes import SHAPES
from serving.work import ONE, Done, Step

COSTS = costs_of(SHAPES["8B"])
LIMITS = Limits(0.025, 10.0)
# Nothing but partitions keeps a limit: a lane slows the other one too much on the same SMs.
NEEDS_PARTITIONS = replace(
    COSTS,
    slowdowns={"disjoint": (1.1, 1.05), "overlay": (9.0, 1.1), "priority": (9.0, 1.1)},
    rates={sms: replace(one, gemms=((1, 0.004), (64, 0.03), (4096, 0.1))) for sms, one in COSTS.rates.items()},
)
# Partitions pay nowhere.
ON_ONE_STREAM = replace(COSTS, slowdowns=dict.fromkeys(("disjoint", "overlay", "priority"), (3.0, 3.0)))


def few(name: str, requests: int) -> Load:
    return replace(LOADS[name], requests=requests)


def served(contender: Contender, load: Load, rate: float, card: VirtualCard | None = None) -> Record:
    return Serving(contender, card or VirtualCard(COSTS), load.draw(rate, 1), load.sequences).run()


def made(name: str, costs: object = COSTS) -> Contender:
    entrant = ENTRANTS[name]
    return entrant.make(entrant.settings(COSTS)[0], costs, LIMITS)  # type: ignore[arg-type]


def spans(steps: list[Done]) -> list[tuple[float, float, set[int]]]:
    """When each step ran, in order, and the sequences that it read or changed."""
    found = [
        (one.begin, one.end, {row.slot for row in one.step.rows} | {part.slot for part in one.step.segments})
        for one in steps
    ]
    return sorted(found, key=lambda one: one[0])


@pytest.mark.parametrize("name", ENTRANTS)
@pytest.mark.parametrize("load", ["retrieval", "chat"])
def test_every_contender_answers_every_request_in_full(name: str, load: str) -> None:
    some = few(load, 4)
    requests = some.draw(4.0, 1)
    record = served(made(name), some, 4.0)
    assert record.complete
    assert len(record.first_tokens) == len(requests)
    assert len(record.gaps) == sum(request.answer - 1 for request in requests)
    # Each prompt passes through the model once, and as many tokens as it has.
    assert sum(one.step.prompt_tokens for one in record.steps) == sum(request.prompt for request in requests)
    ran = spans(record.steps)
    for at, (_, end, slots) in enumerate(ran):
        assert all(begin >= end - 1e-9 or not slots & others for begin, _, others in ran[at + 1 : at + 4])


def test_prefill_first_makes_answers_wait_for_prompts_and_chunks_do_not() -> None:
    load = few("documents", 8)
    assert max(served(made("prefill-first"), load, 0.5).gaps) > 0.5  # a whole prompt
    assert max(served(made("chunked"), load, 0.5).gaps) < 0.03


def ends(step: Step) -> bool:
    return any(segment.last for segment in step.segments)


def test_the_chunk_is_the_largest_that_the_cost_model_allows() -> None:
    record = served(Chunked(COSTS, target_s=0.02), few("documents", 8), 0.5)
    mixed = [one.step for one in record.steps if one.step.rows and one.step.segments and not ends(one.step)]
    assert mixed
    for step in mixed:
        decodes = decodes_for(len(step.rows))
        chunk = step.prompt_tokens + decodes
        larger = next((one for one in CHUNKS if one > chunk), None)
        assert COSTS.seconds(step) <= 0.02 or chunk == CHUNKS[0]
        if larger is not None and len(step.segments) == 1:
            grown = replace(step.segments[0], count=larger - decodes)
            assert COSTS.seconds(replace(step, segments=(grown,))) > 0.02


def test_a_size_that_takes_longer_than_a_larger_one_is_not_used() -> None:
    uneven = replace(COSTS, mixed=((384, 1.08), (416, 1.24), (448, 1.31), (480, 1.01), (2048, 0.96)))
    sizes = mixed_chunks(uneven)
    assert not {416, 448} & set(sizes)
    assert {384, 480} <= set(sizes)


@pytest.mark.parametrize("kind", ["streams", "priority", "overlay", "disjoint"])
def test_the_lanes_of_two_streams_run_at_once(kind: str) -> None:
    record = served(made(kind), few("documents", 4), 0.5)
    assert {one.placement.kind for one in record.steps} == {kind}
    prefills, decodes = ([one for one in record.steps if one.lane == lane] for lane in ("prefill", "decode"))
    assert any(a.begin < b.end and b.begin < a.end for a in prefills for b in decodes)


def test_the_policy_stays_on_one_stream_where_partitions_do_not_pay() -> None:
    card = VirtualCard(ON_ONE_STREAM)
    assert served(made("policy", ON_ONE_STREAM), few("documents", 4), 0.2, card).complete
    assert card.placements == [ONE]


def test_the_policy_gives_more_sms_to_more_context() -> None:
    policy = made("policy", NEEDS_PARTITIONS)
    sizes = [policy.choose(4, tokens, 0).placement.decode_sms for tokens in (10_000, 100_000, 250_000)]  # type: ignore[attr-defined]
    assert sizes == sorted(set(sizes))
    assert len(sizes) == 3


def test_the_policy_does_not_alternate_between_two_sizes_at_the_bound() -> None:
    policy = made("policy", NEEDS_PARTITIONS)
    bound = 1 << 17
    flutter = {id(policy.choose(4, bound + off, 0)) for off in (-100, 100) * 10}  # type: ignore[attr-defined]
    assert len(flutter) == 1


@pytest.mark.parametrize("kind", ["overlay", "disjoint"])
def test_partitions_that_follow_the_load_change_with_it_and_take_no_chunks(kind: str) -> None:
    policy = made(f"following-{kind}")
    assert isinstance(policy, Following)
    # More and more decodes at once, each with a context of 12k.
    placements = [policy.choose(batch, 12_000 * batch, 0).placement for batch in (1, 8, 24, 40)]  # type: ignore[attr-defined]
    assert {one.kind for one in placements} == {kind}
    # Next to an overlay, decode has the whole device in any case.
    assert (len(set(placements)) > 1) == (kind == "disjoint")
    assert policy.choose(4, 48_000, 0, 0).placement.kind == "priority"  # type: ignore[attr-defined]
    record = served(made(f"following-{kind}"), few("answers", 6), 1.0)
    assert record.complete
    assert {one.placement.kind for one in record.steps} == {kind, "priority"}
    assert not any(one.step.rows and one.step.segments for one in record.steps)


@pytest.mark.parametrize(("sizes", "most"), [(BATCHES, 2.0), (CONTEXTS, 2**0.25), (PASTS, 2**0.5), (TOKENS, 2.0)])
def test_a_load_counts_as_one_that_is_little_larger(sizes: tuple[int, ...], most: float) -> None:
    """A prompt of 8,192 tokens does not count as one of 16,384: its chunks would look slower than partitions."""
    for value in range(sizes[0], sizes[-1] + 1, max(1, sizes[0] // 7)):
        assert value <= counted_as(value, sizes) <= most * value * 1.001


def test_a_load_is_the_same_for_all_and_a_rate_only_stretches_it() -> None:
    for load in LOADS.values():
        slow, fast = load.draw(1.0, 5), load.draw(4.0, 5)
        assert [(one.prompt, one.answer) for one in slow] == [(one.prompt, one.answer) for one in fast]
        assert all(one.arrival == pytest.approx(4 * other.arrival) for one, other in zip(slow, fast, strict=True))
        assert load.draw(1.0, 6) != slow
        assert all(one.prompt + one.answer <= load.longest for one in slow)


def test_a_larger_model_has_fewer_requests_and_more_time() -> None:
    assert (load_of("documents", "34B").requests, load_of("documents", "34B").first_token_s) == (12, 20.0)
    assert "34B" not in LOADS["answers"].gaps_ms


def test_a_trial_that_cannot_keep_its_limits_is_cut_short() -> None:
    load = few("documents", 30)
    serving = Serving(made("chunked"), VirtualCard(COSTS), load.draw(3.0, 1), load.sequences)
    record = serving.run(Limits(0.025, 2.0))
    serving.drain()
    assert not record.complete
    assert not record.keeps(LIMITS)
    assert len(record.first_tokens) < 30


def test_limits_are_kept_by_a_share_of_gaps_and_of_first_tokens() -> None:
    gaps, first = [0.01] * 99 + [0.2], [0.5] * 100
    assert Record(gaps=gaps, first_tokens=first, complete=True).keeps(LIMITS)
    assert not Record(gaps=[*gaps, 0.2], first_tokens=first, complete=True).keeps(LIMITS)
    assert not Record(gaps=gaps, first_tokens=[*first, 11.0, 11.0], complete=True).keeps(LIMITS)
    assert not Record(gaps=gaps, first_tokens=first).keeps(LIMITS)


def test_chunks_in_partitions_take_whole_waves() -> None:
    shape = SHAPES["8B"]
    assert [shape.tokens_of_waves(sms, 2) for sms in (132, 116, 108, 100, 84)] == [2048, 1792, 1664, 1536, 1280]
    for name in ("overlay", "disjoint"):
        for settings in ENTRANTS[name].settings(COSTS):
            sms = settings.get("prefill_sms") or COSTS.sm_count - settings["decode_sms"]
            tiles = settings["chunk"] // 128 * (shape.hidden // 256)
            assert tiles % sms == 0 or sms - tiles % sms < shape.hidden // 256
            assert settings["chunk"] in CHUNKS
