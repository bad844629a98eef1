"""Loads: requests drawn from a seed, the same ones for every contender, and the limits that they have to keep."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Request:
    """A prompt that arrives at a time, in seconds, and the number of tokens of its answer."""

    number: int
    arrival: float
    prompt: int
    answer: int


@dataclass(frozen=True)
class Load:
    """A distribution of requests.

    first_token_s: the limit on the time from arrival to the first token. gaps_ms: the limits on the time between two
    tokens that are asked for, by model.
    """

    name: str
    first_token_s: float
    requests: int  # in one trial
    sequences: int  # at most in the caches at once
    lengths: Callable[[random.Random], tuple[int, int]]
    longest: int  # prompt and answer together, at most
    gaps_ms: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: {"8B": (25.0, 50.0), "34B": (60.0,)})

    def draw(self, rate: float, seed: int) -> list[Request]:
        """The requests of a seed. A higher rate shortens the time between them and changes nothing else.

        Arrivals of a Poisson process, given their number in a time: uniform over it, and sorted. So every seed has the
        rate that it is asked for, and seeds differ in their bursts and lengths.
        """
        random_ = random.Random(f"{self.name} {seed}")
        arrivals = sorted(random_.uniform(0.0, self.requests / rate) for _ in range(self.requests))
        return [Request(number, at, *self.lengths(random_)) for number, at in enumerate(arrivals)]


def _log_normal(random_: random.Random, median: float, sigma: float, least: int, most: int) -> int:
    return min(most, max(least, round(random_.lognormvariate(0.0, sigma) * median)))


def _chat(random_: random.Random) -> tuple[int, int]:
    # Means of about 200: the mean of a log-normal is exp(sigma ** 2 / 2) times its median.
    return _log_normal(random_, 133, 0.9, 4, 1536), _log_normal(random_, 155, 0.7, 4, 1024)


def _retrieval(random_: random.Random) -> tuple[int, int]:
    return random_.randrange(7168, 9217), 256


def _documents(random_: random.Random) -> tuple[int, int]:
    return random_.randrange(28672, 31233), random_.randrange(15, 257)


def _answers(random_: random.Random) -> tuple[int, int]:
    return random_.randrange(8192, 16385), random_.randrange(512, 1025)


LOADS = {
    load.name: load
    for load in (
        Load("documents", 10.0, 24, 12, _documents, 31488),
        Load("retrieval", 2.0, 80, 40, _retrieval, 9472),
        # Its 128 slots bound this load: with more of them, rates are higher.
        Load("chat", 1.0, 1600, 128, _chat, 2560),
        Load("answers", 10.0, 64, 40, _answers, 17408, {"8B": (25.0,)}),
    )
}

# A model on which prompts take several times as long has fewer requests in a trial, and more time for the first token.
OF_MODEL = {"34B": (1 / 2, 2.0)}


def load_of(name: str, model: str) -> Load:
    """A load as it is for a model: the number of requests and the limit on the first token depend on it."""
    load = LOADS[name]
    share, longer = OF_MODEL.get(model, (1.0, 1.0))
    requests = round(load.requests * share)
    return replace(
        load,
        requests=requests,
        sequences=min(load.sequences, requests),
        first_token_s=load.first_token_s * longer,
    )
