"""The model answers the same tokens however its steps are cut, and whichever contender cuts them.

Torch computes on the CPU; streams and partitions are those of the software driver. Trials on a GPU check their tokens.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

import reference  # noqa: E402
from made_up import costs_of  # noqa: E402
from serving import __main__ as command  # noqa: E402
from serving import calibrate  # noqa: E402
from serving.answers import TOLERANCE, answer_of, distance_of  # noqa: E402
from serving.card import Card  # noqa: E402
from serving.entrants import ENTRANTS  # noqa: E402
from serving.loads import Load, Request  # noqa: E402
from serving.loop import Limits, Served, Serving  # noqa: E402
from serving.model import SEGMENTS, Model, Workspace, prompt_splits, splits_for  # noqa: E402
from serving.shapes import SHAPES  # noqa: E402
from serving.work import ONE, Placement, Row, Segment, Step  # noqa: E402

from cuda_gctx import Device  # noqa: E402

TINY = SHAPES["tiny"]
PROMPTS = {0: 70, 1: 37, 2: 5}
ANSWER = 6


class CalledAgain:
    """Stands in for a GraphSet where nothing can be captured: a replay calls the function again."""

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
        return nullcontext()


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
def card(gpu_sim: Any) -> Iterator[Card]:
    with CardWithoutGPU(
        Device(0),
        model(slots=3, length=520),
        decodes=(1, 3),
        most_tokens=256,
        graphs=CalledAgain(),  # type: ignore[arg-type]
    ) as made:
        yield made


@pytest.fixture
def prompts() -> dict[int, Any]:
    random = Random(3)
    return {
        slot: torch.tensor([random.randrange(TINY.vocabulary) for _ in range(length)], dtype=torch.int32)
        for slot, length in PROMPTS.items()
    }


def run(one: Model, space: Workspace, sizes: tuple[int, int, int], step: Step) -> None:
    frame = one.frame(*sizes)
    space.load(frame, step)
    one.run(frame, space, sms=8)


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
        run(one, space, (4, 0, 0), Step(rows))
    assert answers(one) == one_after_the_other(prompts)


def test_a_step_that_does_not_fit_its_frame_is_refused() -> None:
    frame = model().frame(2, 64, 1)
    table = torch.zeros(frame.integers, dtype=torch.int32).numpy()
    for step in (
        Step(rows=tuple(Row(slot, 0) for slot in range(3))),
        Step(segments=(Segment(0, 0, 65),)),
        Step(segments=tuple(Segment(slot, 0, 1) for slot in range(SEGMENTS + 1))),
        Step(segments=(Segment(0, 0, 1, True), Segment(1, 0, 1, True))),
    ):
        with pytest.raises(ValueError, match="has no room for"):
            frame.fill(step, table)


def test_attention_is_split_so_that_few_sms_idle() -> None:
    assert splits_for(256, 132, waves=8) == 4
    assert splits_for(8, 132, waves=8) == 16
    assert prompt_splits(128, 512, 132) == 1
    assert prompt_splits(128, 512, 116) == 8


REQUESTS = [Request(number, 0.0, prompt, 4) for number, prompt in enumerate((70, 5, 130, 64))]


def tokens_of(card: Card, name: str) -> dict[int, list[int]]:
    """What a contender has a card answer, by request. Its chunks are those for which the card of the test has room."""
    costs, limits = costs_of(TINY), Limits(0.025, 10.0)
    settings = {**ENTRANTS[name].settings(costs)[0], "chunk": 64 if name == "chunked" else 128}
    found: dict[int, list[int]] = {}
    serving = Serving(ENTRANTS[name].make(settings, costs, limits), card, REQUESTS, 3, seed=5)

    def note(served: Served) -> None:
        tokens, prompt = answer_of(card, served)
        found[served.request.number] = tokens[prompt:].tolist()

    serving.on_end = note
    assert serving.run().complete
    return found


def test_all_contenders_get_the_same_tokens_from_the_card(card: Card) -> None:
    found = {name: tokens_of(card, name) for name in ENTRANTS}
    expected = found["prefill-first"]
    assert sorted(expected) == [0, 1, 2, 3]
    assert all(len(tokens) == 4 for tokens in expected.values())
    for name, tokens in found.items():
        assert tokens == expected, name
    assert len(card.pool) > 0


def test_a_wrong_token_is_far_from_the_best(card: Card) -> None:
    kept: list[tuple[Any, int]] = []
    serving = Serving(ENTRANTS["priority"].make({"chunk": 64}, costs_of(TINY), Limits(1.0, 1.0)), card, REQUESTS, 3)
    serving.on_end = lambda served: kept.append(answer_of(card, served))
    serving.run()
    assert max(distance_of(card, *one) for one in kept) < 1e-3
    tokens, prompt = kept[0]
    tokens[prompt + 2] = (tokens[prompt + 2] + 1) % TINY.vocabulary
    assert distance_of(card, tokens, prompt) > TOLERANCE


def test_graphs_that_a_trial_lacked_are_not_captured_again(card: Card) -> None:
    tokens_of(card, "disjoint")
    assert card.late_captures > 0
    card.late_captures = 0
    tokens_of(card, "disjoint")
    assert card.late_captures == 0


def test_every_placement_has_its_sms(card: Card) -> None:
    whole = card.device.sm_count
    for placement, decode, prefill in (
        (ONE, whole, whole),
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
    assert card.stream("decode", ONE) is card.stream("prefill", ONE)


def test_a_run_measures_costs_and_searches_and_writes_its_results(
    gpu_sim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smoke test: all of the study but a GPU. The times are the CPU's, so the limits are ones that all keep."""
    load = Load("chat", 1e9, 3, 3, lambda random: (random.randrange(1, 100), 3), 520, {"tiny": (1e9,)})
    entrants = {name: replace(ENTRANTS[name], settings=lambda _: [{"chunk": 128}]) for name in ("priority", "chunked")}

    def card_of(device: Device, model: Model, decodes: list[int]) -> Card:
        return CardWithoutGPU(device, model, decodes=decodes, most_tokens=256, graphs=CalledAgain())  # type: ignore[arg-type]

    monkeypatch.setitem(sys.modules, "serving.kernels", reference)
    monkeypatch.setattr("serving.card.Card", card_of)
    monkeypatch.setattr("serving.model.Model", partial(Model, device="cpu", dtype=torch.float32))
    monkeypatch.setattr(calibrate, "MEASURED_CHUNKS", (64, 256))
    monkeypatch.setattr(calibrate, "DECODE_SIZES", (16,))
    monkeypatch.setattr(calibrate, "SECONDS_TOGETHER", 0.0)
    monkeypatch.setattr("serving.search.FARTHEST", 1)
    monkeypatch.setattr(command, "START", 1e6)
    monkeypatch.setattr(command, "SHAPES", {"8B": TINY})
    monkeypatch.setattr(command, "ENTRANTS", entrants)
    monkeypatch.setattr(command, "load_of", lambda name, model: load)
    out = tmp_path / "results.json"
    monkeypatch.setattr(sys, "argv", ["serving", "run", "--load", "chat", "--contender", *entrants, "--out", str(out)])
    assert command.main() == 0
    stored = json.loads(out.read_text())
    assert stored["simulated"] is True
    assert [row["contender"] for row in stored["goodput"]] == ["priority", "chunked"]
    assert all(row["kept"] > 0 and row["kept_by_all"] > 0 for row in stored["goodput"])
    assert {row["seed"] for row in stored["trials"]} == {1, 2, 3}
    assert not any(row["wrong_answers"] for row in stored["trials"])
    assert {row["sms"] for row in stored["costs"]} == {16, 116, 132}
