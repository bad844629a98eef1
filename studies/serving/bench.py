"""A model on a card for one load after the other, and what the card reports next to a trial: memory, power, clocks."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

import torch

from cuda_gctx import Device, system
from serving import kernels
from serving.calibrate import mixed_factors
from serving.card import Card
from serving.costs import Costs
from serving.loads import Load
from serving.loop import Served
from serving.model import Model
from serving.power import Nvml, Watch
from serving.search import Question, Trial
from serving.shapes import Shape
from serving.soak import TOLERANCE, answer_of, distance_of
from serving.trials import spread


class Bench:
    """The model of one shape, with caches for one load at a time."""

    def __init__(self, shape: Shape, decodes: Sequence[int], distinct_layers: int | None = None) -> None:
        self._shape = shape
        self._decodes = decodes
        self._distinct_layers = distinct_layers
        self._device = Device(0)
        self._watch = Watch(lambda: Nvml(str(self._device.uuid)))
        self._load: Load | None = None
        self._card: Card | None = None
        self._began = 0.0
        self._answer: tuple[Any, int] | None = None
        self._known: set[tuple[Question, str]] = set()

    def card(self, load: Load) -> Card:
        """The card with a model whose caches have room for a load."""
        if self._card is None or load != self._load:
            self.close()
            model = Model(
                self._shape, kernels, slots=load.sequences, length=load.longest, distinct_layers=self._distinct_layers
            )
            decodes = sorted({min(size, load.sequences) for size in self._decodes})
            self._card, self._load = Card(self._device, model, decodes=decodes), load
        return self._card

    def knows(self, trial: Trial) -> bool:
        """Whether a trial of the same question and settings was here before, so that its graphs are captured."""
        key = trial.question, trial.settings
        known = key in self._known
        self._known.add(key)
        return known

    def mixed(self, costs: Costs) -> tuple[tuple[int, float], ...]:
        """How many times as long as predicted steps of decodes and prompts take, by their rows."""
        assert self._card is not None
        return mixed_factors(self._card, costs)

    def note(self, served: Served) -> None:
        """Keep the first answer that ends in a trial, for check()."""
        if self._answer is None:
            self._answer = answer_of(self._card, served)

    def check(self) -> dict[str, Any]:
        """By how much a token of the answer that was kept falls short of the best one on the whole device."""
        if self._answer is None:
            return {"checked": 0, "wrong": 0, "worst_distance": 0.0}
        distance = distance_of(self._card, *self._answer)
        return {"checked": 1, "wrong": int(not distance <= TOLERANCE), "worst_distance": round(distance, 4)}

    def begin(self) -> None:
        """A trial begins, in which Python's collector does not run: it would stop the loop for tens of milliseconds."""
        assert self._card is not None
        gc.collect()
        gc.disable()
        self._card.late_captures = 0
        self._card.switch_s.clear()
        self._answer = None
        self._watch.begin()
        self._began = time.perf_counter()

    def end(self) -> dict[str, Any]:
        """What the card reports of the trial that has ended."""
        assert self._card is not None
        measured = self._watch.end(time.perf_counter() - self._began)
        gc.enable()
        return {
            "late_captures": self._card.late_captures,
            "switch_us": spread(self._card.switch_s, 1e-6, 1),
            "gpu": str(self._device.uuid),
            **measured,
            **self.memory(),
        }

    def memory(self) -> dict[str, Any]:
        assert self._card is not None
        memory = system.memory().get(self._device.device_id)
        return {
            "distinct_layers": self._card.model.distinct_layers,
            "graphs": len(self._card.graphs),
            "graph_bytes": self._card.graphs.memory_bytes,
            "layouts": len(self._card.pool),
            "free_bytes": self._card.free_bytes(),
            "contexts": 0 if memory is None else memory.contexts,
            "context_bytes": 0 if memory is None else memory.held_bytes,
        }

    def close(self) -> None:
        """Drop the model and everything on the card; the next trial makes them anew."""
        self._watch.stop()
        gc.enable()
        if self._card is not None:
            self._card.close()
        self._card = self._load = None
        self._known.clear()
        gc.collect()
        torch.cuda.empty_cache()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
