"""Every contender serves the same requests on a virtual clock, and does what its name says."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from serving import trials
from serving.contenders import CHUNKS, ByPolicy, Chunked, LayerInterleaved, Pace, decodes_for, mixed_chunks
from serving.costs import Costs, Rates, made_up
from serving.entrants import ENTRANTS
from serving.loads import LOADS, Load
from serving.loop import Contender, Ended, Limits, Record, Serving, State
from serving.policy import BATCHES, CHOICE_HOLDS, CONTEXTS, DRAIN, PASTS, TOKENS, ByCosts, counted_as
from serving.search import Question, Trial, under, written
from serving.shapes import SHAPES
from serving.virtual import VirtualExecutor
from serving.work import ONE, Done, Placement, Row, Segment, Step
from serving.worlds import SHARES, World

COSTS = made_up(SHAPES["8B"])
LIMITS = Limits(0.025, 10.0)


def few(name: str, requests: int = 8) -> Load:
    return replace(LOADS[name], requests=requests)


def served(contender: Contender, load: Load, rate: float, seed: int = 1, slots: int | None = None) -> Record:
    return Serving(contender, VirtualExecutor(COSTS), load.draw(rate, seed), slots or load.sequences).run()


def made(name: str, which: int = 0, limits: Limits = LIMITS) -> Contender:
    entrant = ENTRANTS[name]
    return entrant.make(entrant.settings(COSTS, limits)[which], COSTS, limits)


@pytest.mark.parametrize("name", ENTRANTS)
@pytest.mark.parametrize("load", LOADS)
def test_every_contender_answers_every_request_in_full(name: str, load: str) -> None:
    some = few(load, 5)
    requests = some.draw(2.0, 3)
    record = served(made(name), some, 2.0, 3)
    assert record.complete
    assert len(record.first_tokens) == len(requests)
    assert len(record.gaps) == sum(request.answer - 1 for request in requests)
    assert record.tokens == sum(request.answer for request in requests)
    # Each prompt passes through the model once, in order, and as many tokens as it has.
    assert prompt_tokens(record.steps) == sum(request.prompt for request in requests)


def prompt_tokens(steps: list[Done]) -> int:
    return sum(one.step.prompt_tokens for one in steps if not one.step.partial)


@pytest.mark.parametrize("name", ENTRANTS)
def test_the_same_settings_under_another_limit_take_the_same_steps(name: str) -> None:
    """On which it rests that a trial answers for other limits."""
    for settings in ENTRANTS[name].settings(COSTS, LIMITS)[:7]:
        one = Trial(Question("8B", "retrieval", 25.0, name), written(settings), 2.0, 1)
        other = under(one, 50.0)
        assert other is not None
        assert under(other, 25.0) == one
        steps = [
            served(trials.contender_of(each, COSTS), few("retrieval", 5), each.rate).steps for each in (one, other)
        ]
        assert steps[0] == steps[1]


@pytest.mark.parametrize("name", ENTRANTS)
def test_no_step_uses_a_sequence_that_another_step_is_changing(name: str) -> None:
    record = served(made(name), few("retrieval", 6), 6.0)
    busy = [
        (one.begin, one.end, {row.slot for row in one.step.rows} | {s.slot for s in one.step.segments})
        for one in record.steps
    ]
    busy.sort(key=lambda one: one[0])
    for i, (_, end, slots) in enumerate(busy):
        for begin, _, others in busy[i + 1 : i + 4]:
            assert begin >= end - 1e-9 or not slots & others


@pytest.mark.parametrize("seed", range(3))
def test_random_loads_end_with_every_contender_and_few_slots(seed: int) -> None:
    random = Random(seed)
    load = few(random.choice(list(LOADS)), 4)
    for name, entrant in ENTRANTS.items():
        which = random.randrange(len(entrant.settings(COSTS, LIMITS)))
        assert served(made(name, which), load, random.uniform(0.2, 20), seed, slots=random.randrange(1, 4)).complete


def test_prefill_first_makes_answers_wait_for_prompts() -> None:
    load = few("documents")
    longest = max(served(made("prefill-first"), load, 0.5).gaps)
    assert longest > 0.5  # a whole prompt
    assert max(served(made("chunked"), load, 0.5).gaps) < 0.03


def test_the_chunk_is_the_largest_that_the_cost_model_allows() -> None:
    record = served(Chunked(COSTS, target_s=0.02), few("documents"), 0.5)
    mixed = [one.step for one in record.steps if one.step.rows and one.step.segments]
    assert mixed
    for step in mixed:
        if step.segments[0].last:
            continue
        size = decodes_for(len(step.rows))
        chunk = step.prompt_tokens + size
        assert COSTS.seconds(step) <= 0.02 or chunk == CHUNKS[0]
        larger = next((one for one in CHUNKS if one > chunk), None)
        if larger is not None and len(step.segments) == 1:
            grown = replace(step.segments[0], count=larger - size)
            assert COSTS.seconds(replace(step, segments=(grown,))) > 0.02


def test_a_fixed_chunk_stays() -> None:
    record = served(Chunked(COSTS, chunk=192), few("documents"), 0.5)
    steps = [one.step for one in record.steps if one.step.segments and not ends(one.step)]
    assert {step.prompt_tokens + (decodes_for(len(step.rows)) if step.rows else 0) for step in steps} == {192}


@pytest.mark.parametrize("name", ["chunked", "layers"])
def test_a_card_slower_than_its_costs_is_noticed(name: str) -> None:
    slow = COSTS.heated(1.3)
    entrant = ENTRANTS[name]
    limits = Limits(0.05, 10.0)
    contender = entrant.make(entrant.settings(COSTS, limits)[0], COSTS, limits)
    load = few("documents", 12)
    record = Serving(contender, VirtualExecutor(slow), load.draw(0.5, 1), load.sequences).run()
    late = sum(gap > limits.gap_s for gap in record.gaps)
    assert late <= 0.01 * len(record.gaps)


def test_heat_slows_what_computes_and_not_what_reads() -> None:
    hot = COSTS.heated(1.25)
    chunk, decode = Step(segments=(Segment(0, 8192, 1024),)), Step(rows=tuple(Row(slot, 30_000) for slot in range(4)))
    assert hot.seconds(chunk) == pytest.approx(1.25 * COSTS.seconds(chunk))
    assert hot.seconds(decode) == COSTS.seconds(decode)


def ends(step: Step) -> bool:
    return any(segment.last for segment in step.segments)


def test_layers_of_a_prompt_pass_in_order_between_decode_steps() -> None:
    record = served(LayerInterleaved(COSTS, 0.02, 4096), few("documents"), 0.5)
    steps = [one.step for one in record.steps]
    at, tokens = 0, None
    for i, step in enumerate(steps):
        if not step.segments:
            continue
        if step.layers is None:
            assert at == 0
            continue
        begin, end = step.layers
        assert begin == at
        assert tokens in (None, step.segments)  # the same tokens until they have passed through all layers
        at, tokens = (end, step.segments) if step.partial else (0, None)
        assert step.partial == (end < COSTS.layers)
        if i + 1 < len(steps) and step.partial:
            follower = steps[i + 1]
            assert follower.rows or follower.layers is not None
    assert max(record.gaps) < 0.0201


def test_a_pass_is_split_by_tokens_where_one_layer_takes_too_long() -> None:
    narrow = LayerInterleaved(COSTS, 0.0085, 4096)  # a decode step takes most of it
    record = served(narrow, few("documents"), 0.3)
    counts = [one.step.prompt_tokens for one in record.steps if one.step.partial]
    assert min(counts) < 4096


@pytest.mark.parametrize("kind", ["streams", "priority", "overlay", "disjoint"])
def test_the_lanes_of_two_streams_run_at_once(kind: str) -> None:
    record = served(made(kind), few("documents"), 0.5)
    assert {one.placement.kind for one in record.steps} == {kind}
    prefills = [one for one in record.steps if one.lane == "prefill"]
    decodes = [one for one in record.steps if one.lane == "decode"]
    assert any(a.begin < b.end and b.begin < a.end for a in prefills for b in decodes)


def policy(target_s: float = 0.02, sizes: tuple[int, ...] = (16, 24, 32, 48, 64), costs: Costs = COSTS) -> ByCosts:
    return ByCosts(costs, target_s, sizes, lambda sms: SHAPES["8B"].tokens_of_waves(sms, 2))


# A card on which nothing else pays.
ON_ONE_STREAM = replace(COSTS, slowdowns=dict.fromkeys(("disjoint", "overlay", "priority"), (3.0, 3.0)))

# A card on which a step slows decode on the same SMs so much that partitions are the only way.
NEEDS_PARTITIONS = replace(
    COSTS,
    slowdowns={"disjoint": (1.1, 1.05), "overlay": (9.0, 1.1), "priority": (9.0, 1.1)},
    rates={sms: replace(one, gemms=((1, 0.004), (64, 0.03), (4096, 0.1))) for sms, one in COSTS.rates.items()},
)


def test_what_works_alone_has_the_whole_device() -> None:
    for costs in (COSTS, NEEDS_PARTITIONS):
        choose = policy(costs=costs).choose
        choose(4, 120_000, 0)
        for batch, tokens in ((8, 0), (0, 4096)):
            found = choose(batch, 120_000, 0, tokens)
            assert isinstance(found, Chunked) or found.placement == Placement("priority")  # type: ignore[attr-defined]


def test_the_policy_stays_on_one_stream_while_it_chooses_chunks() -> None:
    """A change of placement that gains nothing would make steps wait for each other."""
    executor = VirtualExecutor(ON_ONE_STREAM)
    load = few("documents", 6)
    contender = ENTRANTS["policy"].make({"margin": 0.9, "waves": 2}, ON_ONE_STREAM, LIMITS)
    assert Serving(contender, executor, load.draw(0.2, 1), load.sequences).run().complete
    assert executor.placements == [ONE]


def test_the_policy_gives_more_sms_to_more_context() -> None:
    choose = policy(costs=NEEDS_PARTITIONS).choose
    sizes = [choose(4, context, 0).placement.decode_sms for context in (10_000, 100_000, 250_000)]  # type: ignore[attr-defined]
    assert sizes == sorted(set(sizes))
    assert len(sizes) == 3


def test_the_policy_does_not_alternate_between_two_sizes_at_the_bound() -> None:
    choose = policy(costs=NEEDS_PARTITIONS).choose
    bound = 1 << 17
    assert choose(4, bound - 100, 0) is not choose(4, bound + 100, 0)
    flutter = {id(choose(4, context, 0)) for context in (bound - 100, bound + 100) * 10}
    assert len(flutter) == 1


@pytest.mark.parametrize(("sizes", "most"), [(BATCHES, 2.0), (CONTEXTS, 2**0.25), (PASTS, 2**0.5), (TOKENS, 2.0)])
def test_a_load_counts_as_one_that_is_little_larger(sizes: tuple[int, ...], most: float) -> None:
    """A prompt of 8,192 tokens does not count as one of 16,384: its chunks would look slower than partitions."""
    for value in range(sizes[0], sizes[-1] + 1, max(1, sizes[0] // 7)):
        assert value <= counted_as(value, sizes) <= most * value * 1.001
    assert counted_as(0, sizes) == sizes[0]
    assert counted_as(2 * sizes[-1], sizes) == sizes[-1]


def test_the_policy_takes_chunks_where_partitions_do_not_pay() -> None:
    assert isinstance(policy(costs=ON_ONE_STREAM).choose(4, 8000, 0), Chunked)


@pytest.mark.parametrize(("name", "requests"), [("chat", 600), ("retrieval", 60)])
def test_while_all_slots_are_taken_the_policy_serves_as_fast_as_the_best_size(name: str, requests: int) -> None:
    """With short answers, the largest steps that keep a limit are not the fastest; with long prompts, small ones are
    not.
    """
    load = few(name, requests)
    best = min(served(Chunked(COSTS, chunk=size), load, 1e3).seconds for size in (192, 256, 512, 1024, 2048))
    assert served(policy(0.045, costs=ON_ONE_STREAM), load, 1e3).seconds <= 1.01 * best


@pytest.mark.parametrize("rows", [256, 288])
def test_while_all_slots_are_taken_the_policy_avoids_sizes_that_take_longer_than_predicted(rows: int) -> None:
    truth = replace(ON_ONE_STREAM, mixed=((rows - 32, 1.0), (rows, 1.3), (4096, 1.0)))
    load = few("chat", 600)

    def seconds(contender: Contender) -> float:
        executor = VirtualExecutor(truth, noise=0.02)
        return Serving(contender, executor, load.draw(1e3, 1), load.sequences).run().seconds

    best = min(seconds(Chunked(ON_ONE_STREAM, chunk=size)) for size in (256, 288, 320, 352, 384, 512))
    assert seconds(policy(0.045, costs=ON_ONE_STREAM)) <= 1.03 * best


def shown(
    chooser: ByCosts,
    tokens: int,
    took: float = 1.0,
    steps: int = 8,
    queued: int = 1,
    decodes: int = 128,
    placement: Placement = ONE,
    waiting: int = 256,
) -> int:
    """The most rows of a step that a policy takes for a batch of 128, after steps with so many tokens of a prompt."""
    segments = (Segment(0, 0, tokens),) if tokens else ()
    step = Step(rows=tuple(Row(slot, 400) for slot in range(decodes)), segments=segments)
    seconds = took * ON_ONE_STREAM.seconds(step)
    for _ in range(steps):
        chooser.decide(State(queued=queued, ended=[Ended("decode", step, placement, seconds, False)]))
    for _ in range(CHOICE_HOLDS + 1):
        chosen = chooser.choose(128, 128 * 400, 0, waiting, full=True)
    assert isinstance(chosen, Chunked)
    return chosen.most


def settled() -> tuple[ByCosts, int]:
    """A policy after many steps with and without prompts, and the most rows that it takes."""
    chooser = policy(0.045, costs=ON_ONE_STREAM)
    rows = [shown(chooser, tokens, steps=40) for _ in range(10) for tokens in (256, 0)]
    return chooser, rows[-1]


def test_a_size_of_steps_is_left_once_it_is_known_to_take_longer_than_others() -> None:
    chooser, rows = settled()
    assert rows < 128 + 256, "steps of another size have run"
    assert shown(chooser, rows - 128, 1.05, steps=Pace.KNOWN - 1, queued=0) == rows, "not known yet"
    assert shown(chooser, rows - 128, 1.05, steps=1, queued=0) > rows


def test_a_size_of_steps_is_kept_if_all_take_longer_than_predicted() -> None:
    chooser, slower = policy(0.045, costs=ON_ONE_STREAM), policy(0.045, costs=ON_ONE_STREAM)
    for tokens in [256, 0] * 10:
        rows = shown(chooser, tokens, steps=40)
        assert shown(slower, tokens, 1.3, steps=40) == rows
    assert shown(slower, rows - 128, 1.3, steps=Pace.KNOWN) == rows


def test_steps_that_are_not_of_decodes_on_one_stream_do_not_change_the_size_of_steps() -> None:
    chooser, rows = settled()
    assert shown(chooser, rows - decodes_for(0), 1.5, queued=0, decodes=0) == rows
    assert shown(chooser, rows - 128, 1.5, queued=0, placement=Placement("disjoint", 16, 116)) == rows


def test_what_comes_while_slots_are_free_does_not_change_the_size_of_steps() -> None:
    chooser = policy(0.045, costs=ON_ONE_STREAM)
    rows = [shown(chooser, tokens, steps=120) for _ in range(4) for tokens in (256, 0)][-2:]
    assert shown(chooser, 0, steps=2000, queued=0) == rows[-1]
    assert rows[0] <= 1.15 * rows[1], "the last steps are not all that count"


def test_steps_grow_while_prompts_hold_slots_that_could_decode() -> None:
    chooser, rows = settled()
    assert shown(chooser, 0, steps=0, waiting=1024) == rows, "taken in a few steps anyway"
    most = shown(chooser, 0, steps=0, waiting=4096)
    assert 4096 / DRAIN <= most < 4096
    assert most > rows
    assert shown(chooser, 0, steps=0) == rows, "what waits has been taken"


# As measured on an H200: steps of some sizes take longer than larger ones.
UNEVEN = replace(
    COSTS,
    mixed=(
        (64, 1.1),
        (256, 1.07),
        (288, 1.22),
        (384, 1.08),
        (416, 1.24),
        (448, 1.31),
        (480, 1.01),
        (576, 1.13),
        (2048, 0.96),
    ),
)


def test_a_size_that_takes_longer_than_a_larger_one_is_not_used() -> None:
    sizes = mixed_chunks(UNEVEN)
    assert not {416, 448} & set(sizes)
    assert {384, 480} <= set(sizes)
    for past in (0, 30_000):
        times = [UNEVEN.mixed_seconds(size, 0, size * past) for size in sizes]
        assert times == sorted(times)
    assert {rows for rows in CHUNKS if 128 <= rows <= 2048} <= set(mixed_chunks(COSTS))


def test_a_chunk_grows_beyond_sizes_that_take_longer() -> None:
    """Largest chunks are found from small ones, although some between them do not keep the target."""
    record = served(Chunked(UNEVEN, target_s=0.0125), few("documents"), 0.5)
    rows = {one.step.prompt_tokens + decodes_for(len(one.step.rows)) for one in record.steps if mixed(one.step)}
    assert 480 in rows
    assert not rows & {416, 448}


def mixed(step: Step) -> bool:
    return bool(step.rows and step.segments) and not ends(step)


def test_a_choice_holds_for_some_steps_of_the_same_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is idle while the host compares."""
    chosen = policy(costs=ON_ONE_STREAM)
    compared: list[int] = []
    best = chosen._best

    def counted(*arguments: Any) -> Any:
        compared.append(1)
        return best(*arguments)

    monkeypatch.setattr(chosen, "_best", counted)
    for _ in range(CHOICE_HOLDS):
        chosen._chunked.pace.note(1.2, 1.0)  # other costs at each step
        assert isinstance(chosen.choose(4, 80_000, 0), Chunked)
    assert len(compared) == 1
    chosen.choose(8, 160_000, 0)
    assert len(compared) == 2


def test_what_steps_take_on_average_is_compared_and_not_what_nearly_all_keep() -> None:
    pace = Pace()
    for took in (1.0, 1.2) * 50:
        pace.note(took, 1.0)
    assert pace.factor > 1.15
    assert pace.mean == pytest.approx(1.1, abs=0.02)


def test_a_kind_that_was_not_used_is_hoped_to_be_better_than_the_others() -> None:
    pace = Pace()
    assert pace.hoped(1.2, 0.15) == pytest.approx(1.2 * 0.85)
    for _ in range(Pace.KNOWN):
        pace.note(1.3, 1.0)
    assert pace.hoped(1.2, 0.15) == pytest.approx(1.3)


# Worlds in which a policy falls behind that uses sizes that take longer than larger ones (documents), or that compares
# what nearly all steps keep (retrieval). One command rehearses whole trials in many more: serve.py worlds.
@pytest.mark.parametrize(
    ("name", "requests", "gap_ms", "seed"),
    [("documents", 12, 25.0, 2), ("documents", 12, 50.0, 2), ("retrieval", 24, 50.0, 3)],
)
def test_the_policy_keeps_up_with_the_best_where_costs_are_not_as_expected(
    name: str, requests: int, gap_ms: float, seed: int
) -> None:
    world = World.drawn(UNEVEN, few(name, requests), gap_ms, seed)
    best, contender = world.best()
    assert world.share_of_policy(best) == SHARES[0], f"{contender} keeps {best} in {world}"


def test_a_load_beyond_the_buckets_is_the_largest_one() -> None:
    choose = policy().choose
    assert choose(1000, 10**8, 10**6) is choose(128, 1 << 20, 32768)


def test_placements_change_only_while_no_prefill_runs() -> None:
    executor = VirtualExecutor(NEEDS_PARTITIONS)
    changes: list[bool] = []
    launch = executor.launch

    def watched(lane: Any, step: Step, placement: Placement) -> None:
        if executor.placements and executor.placements[-1] != placement:
            changes.append("prefill" in executor._running)
        launch(lane, step, placement)

    executor.launch = watched  # type: ignore[method-assign]
    load = few("documents")
    contender = policy(costs=NEEDS_PARTITIONS)
    assert Serving(contender, executor, load.draw(0.6, 1), load.sequences).run().complete
    assert changes
    assert not any(changes)


def test_a_policy_can_choose_not_to_partition() -> None:
    chunked = Chunked(COSTS, target_s=0.02)
    record = served(ByPolicy(lambda state: chunked), few("chat"), 20.0)
    assert {one.placement for one in record.steps} == {ONE}


def test_a_load_is_the_same_for_all_and_a_rate_only_stretches_it() -> None:
    for load in LOADS.values():
        slow, fast = load.draw(1.0, 5), load.draw(4.0, 5)
        assert [(one.prompt, one.answer) for one in slow] == [(one.prompt, one.answer) for one in fast]
        assert all(one.arrival == pytest.approx(4 * other.arrival) for one, other in zip(slow, fast, strict=True))
        assert load.draw(1.0, 6) != slow
        assert all(one.prompt + one.answer <= load.longest for one in slow)


def test_a_seed_has_the_rate_that_it_is_asked_for() -> None:
    for load in LOADS.values():
        last = [load.draw(2.0, seed)[-1].arrival for seed in range(5)]
        assert all(0.8 < 2.0 * one / load.requests <= 1.0 for one in last)


def test_chat_has_about_200_tokens_in_and_out() -> None:
    requests = LOADS["chat"].draw(1.0, 1)
    for values in ([one.prompt for one in requests], [one.answer for one in requests]):
        assert 150 < sum(values) / len(values) < 260


def test_a_trial_that_cannot_keep_its_limits_is_cut_short() -> None:
    load = few("documents", 30)
    limits = Limits(0.025, 2.0)
    serving = Serving(made("chunked"), VirtualExecutor(COSTS), load.draw(3.0, 1), load.sequences)
    record = serving.run(limits)
    serving.drain()
    assert not record.complete
    assert not record.keeps(limits)
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
    assert shape.tokens_of_waves(116, 1) == 896
    for name in ("overlay", "disjoint"):
        for settings in ENTRANTS[name].settings(COSTS, LIMITS):
            sms = settings.get("prefill_sms") or COSTS.sm_count - settings["decode_sms"]
            tiles = settings["chunk"] // 128 * (shape.hidden // 256)
            assert tiles % sms == 0 or sms - tiles % sms < shape.hidden // 256
            assert settings["chunk"] in CHUNKS


def test_costs_are_what_was_measured_and_go_between_it() -> None:
    rates = {132: Rates(((1, 0.004), (101, 0.006)), 1e-7, 1e-12), 66: Rates(((1, 0.008), (101, 0.012)), 2e-7, 2e-12)}
    costs = Costs("card", "model", 4, 132, rates, {"disjoint": (1.5, 1.25)}, ((66, "prefill"),))
    step = Step(segments=(Segment(0, 1000, 51),))
    pairs = 51 * 1000 + 51 * 52 // 2
    assert costs.seconds(step) == pytest.approx(0.005 + pairs * 1e-12)
    assert costs.seconds(step, 66) == pytest.approx(2 * costs.seconds(step))
    assert costs.seconds(step) < costs.seconds(step, 99) < costs.seconds(step, 66)
    assert costs.seconds(replace(step, layers=(1, 2))) == pytest.approx(costs.seconds(step) / 4)
    assert costs.decode_seconds(1, 10**6, 132) == pytest.approx(0.004 + 0.1)
    assert Costs.from_json(costs.to_json()) == costs


def test_steps_of_slower_cards_are_prepared_too() -> None:
    trial = Trial(Question("8B", "retrieval", 25.0, "chunked"), '{"margin": 0.9}', 3.0, 1)
    rehearsed = trials.rehearse(trial, COSTS)
    more = trials.steps_of(trial, COSTS, rehearsed)
    tokens = {one.step.prompt_tokens for one in rehearsed.steps}
    assert tokens < {one.step.prompt_tokens for one in more}


def test_every_placement_that_a_policy_may_choose_is_prepared() -> None:
    trial = Trial(Question("8B", "retrieval", 25.0, "policy"), '{"margin": 0.9, "waves": 2}', 30.0, 1)
    steps = trials.steps_of(trial, COSTS, Record())
    for lane in ("decode", "prefill"):
        found = {one.placement for one in steps if one.lane == lane}
        assert {Placement("disjoint", sms, 132 - sms) for sms in (16, 24, 32, 48, 64)} <= found
        assert {Placement("overlay", None, 132 - sms) for sms in (16, 24, 32, 48, 64)} <= found
    assert max(len(one.step.rows) for one in steps) == LOADS["retrieval"].sequences


@pytest.mark.parametrize("name", ENTRANTS)
def test_decodes_of_all_sequences_are_prepared(name: str) -> None:
    """A trial that falls behind has more answers at once than its rehearsal had."""
    question = Question("8B", "retrieval", 25.0, name)
    trial = Trial(question, written(ENTRANTS[name].settings(COSTS, LIMITS)[0]), 0.5, 1)
    rehearsed = trials.rehearse(trial, COSTS)
    assert max(len(one.step.rows) for one in rehearsed.steps) < LOADS["retrieval"].sequences
    largest: dict[Placement, int] = {}
    for one in trials.steps_of(trial, COSTS, rehearsed):
        if not one.step.segments:
            largest[one.placement] = max(largest.get(one.placement, 0), len(one.step.rows))
    assert set(largest) >= {one.placement for one in rehearsed.steps}
    assert set(largest.values()) == {LOADS["retrieval"].sequences}
