"""The model answers the same tokens however its steps are cut, and whichever contender cuts them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import ceil
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from serving import reference, soak  # noqa: E402
from serving.card import Card  # noqa: E402
from serving.contenders import Concurrent, LayerInterleaved  # noqa: E402
from serving.costs import made_up  # noqa: E402
from serving.entrants import ENTRANTS  # noqa: E402
from serving.loads import Load, Request, load_of  # noqa: E402
from serving.loop import Limits, Served, Serving  # noqa: E402
from serving.model import PARTIAL_ROWS, SEGMENTS, Model, Workspace, prompt_splits, splits_for  # noqa: E402
from serving.shapes import SHAPES  # noqa: E402
from serving.work import Placement, Row, Segment, Step  # noqa: E402

from cuda_gctx import Device  # noqa: E402

TINY = SHAPES["tiny"]
PROMPTS = {0: 70, 1: 37, 2: 5}
ANSWER = 6


def model(slots: int = 4, length: int = 200) -> Model:
    return Model(TINY, reference, slots=slots, length=length, device="cpu", dtype=torch.float32, seed=1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More threads than cores make small operations slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def prompts() -> dict[int, Any]:
    random = Random(3)
    return {
        slot: torch.tensor([random.randrange(TINY.vocabulary) for _ in range(length)], dtype=torch.int32)
        for slot, length in PROMPTS.items()
    }


def run(one: Model, space: Workspace, sizes: tuple[int, int, int], step: Step, *layers: tuple[int, int]) -> None:
    frame = one.frame(*sizes)
    space.load(frame, step)
    for some in layers or (None,):
        one.run(frame, space, layers=some, sms=8)


def answers(one: Model) -> dict[int, list[int]]:
    return {slot: one.history[slot, length : length + ANSWER].tolist() for slot, length in PROMPTS.items()}


def one_after_the_other(prompts: dict[int, Any]) -> dict[int, list[int]]:
    one = model()
    space = Workspace(one, 128, 4)
    for slot, prompt in prompts.items():
        one.write(slot, prompt)
        run(one, space, (0, 96, 1), Step(segments=(Segment(slot, 0, len(prompt), True),)))
        for k in range(ANSWER - 1):
            run(one, space, (1, 0, 0), Step(rows=(Row(slot, len(prompt) + k),)))
    return answers(one)


def test_chunks_packed_prompts_and_decodes_in_one_step_change_no_token(prompts: dict[int, Any]) -> None:
    one = model()
    space = Workspace(one, 128, 4)
    for slot, prompt in prompts.items():
        one.write(slot, prompt)
    run(one, space, (0, 64, 2), Step(segments=(Segment(1, 0, 37, True), Segment(2, 0, 5, True))))
    for k, (begin, end) in enumerate(((0, 30), (30, 31), (31, 70))):
        rows = tuple(Row(slot, PROMPTS[slot] + k) for slot in (2, 1))
        run(one, space, (4, 64, 1), Step(rows, (Segment(0, begin, end - begin, end == 70),)))
    for k in range(ANSWER - 1):
        rows = (Row(0, 70 + k), *(Row(slot, PROMPTS[slot] + 3 + k) for slot in (1, 2) if k < 2))
        run(one, space, (4, 0, 0), Step(rows), (0, 1), (1, 2))
    assert answers(one) == one_after_the_other(prompts)


def test_distinct_layers_can_be_fewer() -> None:
    one = Model(TINY, reference, slots=1, length=100, device="cpu", dtype=torch.float32, distinct_layers=1)
    assert len(one.layers) == 1
    assert len(one.caches) == TINY.layers


def test_a_step_that_does_not_fit_its_frame_is_refused() -> None:
    frame = model().frame(2, 64, 1)
    table = torch.zeros(frame.integers, dtype=torch.int32).numpy()
    rows = tuple(Row(slot, 0) for slot in range(3))
    for step in (
        Step(rows=rows),
        Step(segments=(Segment(0, 0, 65),)),
        Step(segments=tuple(Segment(slot, 0, 1) for slot in range(SEGMENTS + 1))),
        Step(segments=(Segment(0, 0, 1, True), Segment(1, 0, 1, True))),
    ):
        with pytest.raises(ValueError, match="has no room for"):
            frame.fill(step, table)


def test_splits_are_powers_of_two_and_fill_the_sms() -> None:
    assert splits_for(256, 132, waves=8) == 4
    assert splits_for(8, 132, waves=8) == 16
    assert {splits_for(blocks, sms, 4) for blocks in range(1, 600, 7) for sms in (16, 132)} <= {1, 2, 4, 8, 16}


def test_the_last_wave_of_a_prompt_leaves_few_sms_idle() -> None:
    assert prompt_splits(128, 512, 132) == 1
    assert prompt_splits(128, 512, 116) == 8
    for tokens in (64, 128, 256, 512, 1024, 2048, 4096):
        for sms in (16, 32, 48, 68, 84, 100, 116, 132):
            blocks = tokens // 32 * 8
            parts = prompt_splits(blocks, tokens, sms)
            assert tokens * parts <= PARTIAL_ROWS or parts == 1
            waves = ceil(blocks * parts / sms) / parts
            assert waves <= ceil(blocks / sms)
            allowed = [n for n in (1, 2, 4, 8, 16) if n == 1 or tokens * n <= PARTIAL_ROWS]
            assert waves <= 1.08 * min(ceil(blocks * n / sms) / n for n in allowed)


class CalledAgain:
    """Stands in for a GraphSet where nothing can be captured: a replay calls the function again."""

    memory_bytes = 0

    def __init__(self) -> None:
        self.known: dict[Hashable, Callable[[Any], Any]] = {}

    def capture(self, place: Any, key: Hashable, function: Callable[[Any], Any]) -> None:
        self.known[place, key] = function
        function(place)  # as for torch, so that kernels exist

    def replay(self, place: Any, key: Hashable) -> None:
        self.known[place, key](place)

    def __contains__(self, item: Hashable) -> bool:
        return item in self.known

    def drop(self) -> None:
        self.known.clear()


class CardWithoutGPU(Card):
    """The executor with streams and partitions of the software driver, and torch on the CPU."""

    def on(self, stream: Any) -> Any:
        return nullcontext()

    def aside(self) -> Any:
        return None

    def hinted(self, stream: Any) -> Any:
        self.given = [*getattr(self, "given", []), stream.resources.sm.sm_count]
        return nullcontext()


@pytest.fixture
def card(dev: Device) -> Iterator[Card]:
    if not dev.name.endswith("(simulated)"):
        pytest.skip("the software driver's: on a GPU, benchmarks/serve.py soak checks tokens")
    with CardWithoutGPU(dev, model(slots=3), decodes=(1, 3), most_tokens=256, graphs=CalledAgain()) as made:  # type: ignore[arg-type]
        yield made


REQUESTS = [Request(number, 0.0, prompt, 4) for number, prompt in enumerate((70, 5, 130, 64))]
LIMITS = Limits(0.025, 10.0)


def tokens_of(card: Card, name: str) -> dict[int, list[int]]:
    """What a contender has a card answer, by request."""
    costs = made_up(TINY)
    entrant = ENTRANTS[name]
    settings = entrant.settings(costs, LIMITS)[0]
    found: dict[int, list[int]] = {}
    serving = Serving(entrant.make({**settings, **SMALL[name]}, costs, LIMITS), card, REQUESTS, 3, seed=5)

    def note(served: Served) -> None:
        tokens = card.model.history[served.slot, served.request.prompt :]
        found[served.request.number] = tokens[: served.request.answer].tolist()

    serving.on_end = note
    assert serving.run().complete
    return found


# Chunks for which the card of the test has room.
SMALL: dict[str, dict[str, Any]] = {
    name: {"chunk": 128} for name in ("prefill-first", "layers", "streams", "priority", "overlay", "disjoint", "policy")
} | {"chunked": {"chunk": 64}}


def test_all_contenders_get_the_same_tokens_from_the_card(card: Card) -> None:
    found = {name: tokens_of(card, name) for name in ENTRANTS}
    expected = found["prefill-first"]
    assert sorted(expected) == [0, 1, 2, 3]
    assert all(len(tokens) == 4 for tokens in expected.values())
    for name, tokens in found.items():
        assert tokens == expected, name
    assert len(card.pool) > 0


def test_a_pass_that_is_interrupted_at_every_layer_changes_no_token(card: Card) -> None:
    costs = made_up(TINY)
    slow = replace(costs, rates={sms: replace(one, gemms=((1, 1.0), (200, 1.0))) for sms, one in costs.rates.items()})
    # One layer of the two at a time, although the card turns out to be faster than its costs.
    contender = LayerInterleaved(slow, 0.7, 128)
    load = Load("layers", "short", 60.0, 9, 3, lambda random: (random.randrange(1, 100), random.randrange(2, 9)), 132)
    serving, kept = soak.serve_window(card, load, contender, 1e6, 3, 6, 60.0)
    assert sum(one.step.partial for one in serving.record.steps) >= 3
    assert len(kept) == 6
    assert max(soak.distance_of(card, tokens, prompt) for tokens, prompt in kept) < 1e-3


def test_graphs_that_were_prepared_are_not_captured_in_a_trial(card: Card) -> None:
    tokens_of(card, "disjoint")
    assert card.late_captures > 0
    card.late_captures = 0
    tokens_of(card, "disjoint")
    assert card.late_captures == 0


def test_the_bench_keeps_its_card_for_trials_of_the_same_load(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class FakeCard:
        def __init__(self, *arguments: object, decodes: object) -> None:
            made.append(self)

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setitem(sys.modules, "serving.kernels", reference)  # which need Triton
    bench = importlib.import_module("serving.bench")
    monkeypatch.setattr(bench, "Card", FakeCard)
    monkeypatch.setattr(bench, "Model", lambda *arguments, **named: None)
    with bench.Bench(SHAPES["34B"], (1, 2)) as one:
        assert one.card(load_of("chat", "34B")) is one.card(load_of("chat", "34B"))
        assert one.card(load_of("chat", "8B")) is made[-1]
    assert len(made) == 2


def test_smaller_steps_than_those_rehearsed_have_graphs_too(card: Card) -> None:
    placement = Placement("one")
    rehearsed = Step((Row(0, 3), Row(1, 3)), (Segment(2, 0, 100, True),))
    card.prepare([card.shot("decode", rehearsed, placement)])
    for rows in (rehearsed.rows[:1], rehearsed.rows):
        for count, last in ((60, False), (5, True), (120, False)):
            step = Step(rows, (Segment(2, 0, count, last),))
            card.admit(2, count, 1)
            card.launch("decode", step, placement)
            while card.busy:
                card.finished()
    assert card.late_captures == 0


def test_smaller_passes_than_those_rehearsed_have_graphs_of_each_layer_too(card: Card) -> None:
    placement = Placement("one")
    rehearsed = Step(segments=(Segment(2, 0, 100, True),), layers=(1, 2))
    card.prepare([card.shot("prefill", rehearsed, placement)])
    for layers in ((0, 1), (1, 2)):
        step = Step(segments=(Segment(2, 0, 60),), layers=layers, partial=layers[1] < TINY.layers)
        card.admit(2, 60, 1)
        card.launch("prefill", step, placement)
        while card.busy:
            card.finished()
    assert card.late_captures == 0


def test_a_hint_makes_a_graph_of_its_own(card: Card) -> None:
    placement, step = Placement("disjoint", 32, card.device.sm_count - 32), Step(segments=(Segment(0, 0, 5, True),))
    shot = card.shot("prefill", step, placement)
    card.prepare([shot])
    before = set(card.graphs.known)  # type: ignore[attr-defined]
    card.hints = {(card.device.sm_count - 32, "prefill"): True}
    card.prepare([shot])
    made = set(card.graphs.known) - before  # type: ignore[attr-defined]
    assert made
    assert all(key[-1] is True for _, key in made)
    card.launch("prefill", step, placement)
    assert set(card.given) == {card.device.sm_count - 32}  # type: ignore[attr-defined]


def test_a_lane_runs_one_step_at_a_time(card: Card) -> None:
    step = Step(rows=(Row(0, 3),))
    card.launch("decode", step, Placement("priority"))
    with pytest.raises(RuntimeError, match="the decode lane is busy"):
        card.launch("decode", step, Placement("priority"))
    while not (done := card.finished()):
        pass
    assert [one.lane for one in done] == ["decode"]
    assert not card.busy


def test_every_placement_has_its_sms(card: Card) -> None:
    whole = card.device.sm_count
    for placement, decode, prefill in (
        (Placement("one"), whole, whole),
        (Placement("streams"), whole, whole),
        (Placement("priority"), whole, whole),
        (Placement("overlay", None, whole - 32), whole, whole - 32),
        (Placement("disjoint", 32, whole - 32), 32, whole - 32),
    ):
        assert card.stream("decode", placement).resources.sm.sm_count == decode
        assert card.stream("prefill", placement).resources.sm.sm_count == prefill
    overlay, disjoint = Placement("overlay", None, whole - 32), Placement("disjoint", 32, whole - 32)
    assert card.stream("prefill", overlay) is card.stream("prefill", disjoint)
    assert card.stream("decode", Placement("priority")).priority == card.device.priority_range[1]
    assert card.stream("decode", Placement("one")) is card.stream("prefill", Placement("one"))


def test_random_changes_of_layout_change_no_token(card: Card) -> None:
    load = Load("soak", "short", 60.0, 8, 3, lambda random: (random.randrange(1, 120), random.randrange(2, 12)), 132)
    contenders = soak.contenders_of(TINY, card.device.sm_count, chunk=64)
    serving, kept = soak.serve_window(card, load, soak.at_random(7, contenders, 0.5), 1e6, 7, 8, 60.0)
    assert serving.record.complete
    assert serving.record.placements > 8
    assert len(kept) == 8
    assert max(soak.distance_of(card, tokens, prompt) for tokens, prompt in kept) < 1e-3


def test_the_check_of_tokens_fills_its_buffers_on_the_stream_that_uses_them(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[Any] = []
    made: list[list[Any]] = []

    @contextmanager
    def on(stream: Any) -> Iterator[None]:
        entered.append(stream)
        yield
        entered.pop()

    def workspace(*arguments: Any) -> Workspace:
        made.append(list(entered))
        return Workspace(*arguments)

    monkeypatch.setattr(card, "on", on)
    monkeypatch.setattr(soak, "Workspace", workspace)
    soak.distance_of(card, torch.arange(20, dtype=torch.int32), 10)
    assert made == [[card.stream("prefill", Placement("one"))]]


def test_memory_is_compared_from_a_quarter_of_the_time_on() -> None:
    assert soak.baseline([(30.0, 900)]) == 900
    assert soak.baseline([(30.0, 900), (60.0, 700), (110.0, 600), (200.0, 600), (400.0, 500)]) == 600


def test_a_wrong_token_is_far_from_the_best(card: Card) -> None:
    load = Load("soak", "one", 60.0, 1, 3, lambda random: (60, 20), 132)
    _, [(tokens, prompt)] = soak.serve_window(
        card, load, soak.at_random(1, [Concurrent(Placement("priority"), 64)]), 1.0, 1, 1, 60
    )
    tokens[prompt + 9] = (tokens[prompt + 9] + 1) % TINY.vocabulary
    assert soak.distance_of(card, tokens, prompt) > soak.TOLERANCE
