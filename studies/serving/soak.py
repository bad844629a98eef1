"""Hours of random load with changes of layout, in runs of minutes: nothing hangs, memory is flat, tokens are right."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from serving.contenders import ByPolicy, Chunked, Concurrent
from serving.costs import made_up
from serving.loads import Load
from serving.loop import Contender, Served, Serving, State
from serving.model import SEGMENTS, Workspace
from serving.shapes import Shape
from serving.work import Placement, Segment, Step

# Logits have a standard deviation of about 1. Rounding moves them by a few hundredths; a wrong token is off by more.
TOLERANCE = 0.25
DECODES = {"small": (1, 4, 16, 48), "8B": (1, 2, 6)}


def _lengths_of(longest_prompt: int, longest_answer: int) -> Callable[[random.Random], tuple[int, int]]:
    def lengths(random_: random.Random) -> tuple[int, int]:
        return random_.randrange(1, longest_prompt + 1), random_.randrange(2, longest_answer + 1)

    return lengths


LOADS = {
    "small": Load("soak", "random lengths for the small model", 60.0, 1000, 48, _lengths_of(1500, 500), 2000),
    "8B": Load("soak", "random lengths for the 8B model", 60.0, 16, 6, _lengths_of(16000, 256), 16256),
}
# Requests per second: more than can be served, so that the slots are full.
RATES = {"small": 1000.0, "8B": 20.0}


def at_random(seed: int, contenders: Sequence[Contender], change: float = 0.1) -> Contender:
    """One of the contenders, and at each decision with a probability another one."""
    random_ = random.Random(seed)
    chosen = random_.choice(contenders)

    def choose(state: State) -> Contender:
        nonlocal chosen
        if random_.random() < change:
            chosen = random_.choice(contenders)
        return chosen

    return ByPolicy(choose)


def contenders_of(shape: Shape, sm_count: int, chunk: int = 256) -> list[Contender]:
    """Every kind of placement, and three layouts."""
    placements = [Placement("disjoint", sms, sm_count - sms) for sms in (16, 32, 64)]
    placements += [Placement("overlay", None, sm_count - 32), Placement("priority"), Placement("streams")]
    return [Chunked(made_up(shape, sm_count), chunk=chunk), *(Concurrent(one, chunk) for one in placements)]


def distance_of(card: Any, tokens: Any, prompt: int) -> float:
    """By how much a token of an answer falls short of the best one, at most, on the whole device.

    tokens: prompt and answer of a sequence, which was served in whatever layouts. The card must be idle; the sequence
    is put into slot 0. Every position is computed given the tokens before it, as parts of a prompt.
    """
    model, stream = card.model, card.stream("prefill", Placement("one"))
    frame = model.frame(0, 512, SEGMENTS)
    worst = 0.0
    with card.on(stream):
        # On the stream that uses it: the default stream would fill it with zeros whenever that comes to run.
        space = Workspace(model, 512, 0)
        model.write(0, tokens)
        for start in range(0, prompt - 1, 512):
            space.load(frame, Step(segments=(Segment(0, start, min(512, prompt - 1 - start)),)))
            model.run(frame, space)
            stream.sync()  # before the buffers of the tables come round again
        for first in range(prompt - 1, len(tokens) - 1, SEGMENTS):
            positions = range(first, min(first + SEGMENTS, len(tokens) - 1))
            model.write(0, tokens)  # a step writes its own answers
            space.load(frame, Step(segments=tuple(Segment(0, position, 1, True) for position in positions)))
            model.run(frame, space)
            logits = space.logits[: len(positions)].float()
            chosen = tokens[positions.start + 1 : positions.stop + 1].to(logits.device).long()
            short = logits.max(1).values - logits.gather(1, chosen[:, None])[:, 0]
            worst = max(worst, float(short.max()))
    return worst


def answer_of(card: Any, served: Served) -> tuple[Any, int]:
    """The tokens of a sequence that has ended, on the host, and the length of its prompt."""
    request = served.request
    with card.on(card.spare):
        history = card.model.history[served.slot, : request.prompt + request.answer]
        return history.to("cpu", copy=True), request.prompt


def serve_window(
    card: Any, load: Load, contender: Contender, rate: float, seed: int, sample: int, most_seconds: float
) -> tuple[Serving, list[tuple[Any, int]]]:
    """Serve one draw of a load; also the tokens and the length of the prompt of some answers, the first to end."""
    kept: list[tuple[Any, int]] = []

    def note(served: Served) -> None:
        if len(kept) < sample:
            kept.append(answer_of(card, served))

    serving = Serving(contender, card, load.draw(rate, seed), load.sequences, seed=seed)
    serving.on_end = note
    serving.run(most_seconds=most_seconds)
    serving.drain()
    return serving, kept


def baseline(series: Sequence[tuple[float, int]]) -> int:
    """The memory after a quarter of the time: before, graphs are captured, and other processes may begin."""
    last, _ = series[-1]
    return next(some for at, some in series if at >= last / 4)


def soak(store: Any, shape: Shape, until: float, share: int = 1, distinct_layers: int | None = None) -> int:
    """Serve until a time, add what happened to the results; 1 if a token was wrong.

    share: the number of this process among those that soak at once, each with seeds of its own.
    """
    from serving.bench import Bench

    load, rate = LOADS[shape.name], RATES[shape.name]
    began = time.monotonic()
    seed = 100_000 * (share - 1) + sum(one["windows"] for one in store.content["soaks"] if one["model"] == shape.name)
    row: dict[str, Any] = {
        "model": shape.name,
        "distinct_layers": distinct_layers or shape.layers,
        "first_seed": seed,
        "windows": 0,
        "decode_steps": 0,
        "tokens": 0,
    }
    row |= {"requests": 0, "switches": 0, "checked": 0, "wrong": 0, "worst_distance": 0.0}
    # After each window: of the device, which other processes may use too, and of this process.
    free: list[tuple[float, int]] = []
    held: list[tuple[float, int]] = []
    with Bench(shape, DECODES[shape.name], distinct_layers) as bench:
        card = bench.card(load)
        contenders = contenders_of(shape, card.device.sm_count)
        while (left := until - time.monotonic() - 10.0) > 0:
            contender = at_random(seed, contenders)
            serving, kept = serve_window(card, load, contender, rate, seed, 4, left)
            record = serving.record
            row["windows"] += 1
            row["decode_steps"] += sum(bool(one.step.rows) for one in record.steps)
            row["tokens"] += record.tokens
            row["requests"] += len(record.first_tokens)
            row["switches"] += record.placements
            for tokens, prompt in kept:
                distance = distance_of(card, tokens, prompt)
                row["checked"] += 1
                row["wrong"] += not distance <= TOLERANCE
                row["worst_distance"] = max(row["worst_distance"], round(distance, 4))
            seed += 1
            row["seconds"] = round(time.monotonic() - began, 1)
            free.append((row["seconds"], card.free_bytes()))
            held.append((row["seconds"], card.held_bytes()))
            for name, series in (("free", free), ("held", held)):
                row[f"{name}_bytes"] = [baseline(series), series[-1][1]]
                row[f"{name}_mib"] = [[at, round(some / 2**20)] for at, some in series]
            # After each window: a run that is killed has shown something too.
            (store.add if row["windows"] == 1 else store.change_last)("soaks", row)
            shown = {name: value for name, value in row.items() if not name.endswith("_mib")}
            print(f"{row['seconds']:6.1f} s: {shown}", flush=True)
    return int(row["wrong"] > 0)
