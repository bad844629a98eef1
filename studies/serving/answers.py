"""Whether the tokens of an answer are those of the whole device."""

from __future__ import annotations

from typing import Any

from serving.loop import Served
from serving.model import SEGMENTS, Workspace
from serving.work import ONE, Segment, Step

# Logits have a standard deviation of about 1. Rounding moves them by a few hundredths; a wrong token is off by more.
TOLERANCE = 0.25


def distance_of(card: Any, tokens: Any, prompt: int) -> float:
    """By how much a token of an answer falls short of the best one, at most, on the whole device.

    tokens: prompt and answer of a sequence, which was served in whatever layouts. The card must be idle; the sequence
    is put into slot 0. Every position is computed given the tokens before it, as parts of a prompt.
    """
    model, stream = card.model, card.stream("prefill", ONE)
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
