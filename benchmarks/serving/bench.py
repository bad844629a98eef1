"""A model on a card for one load after the other, and what the card reports next to a trial: memory, power, clocks."""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Sequence
from typing import Any

import torch

from cuda_gctx import Device, system
from serving import kernels
from serving.card import Card
from serving.loads import Load
from serving.model import Model
from serving.shapes import Shape
from serving.trials import spread


class Power:
    """Energy and clocks as NVML reports them, which is only read; without NVML nothing is known."""

    def __init__(self, device: Device) -> None:
        try:
            self._nvml: Any = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{device.uuid}")
        except Exception as error:  # no module, no library, or a machine that hides it: each has a type of its own
            self._nvml, self.why_not = None, str(error)

    def joules(self) -> float | None:
        if self._nvml is None:
            return None
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3

    def sm_clock_mhz(self) -> int | None:
        if self._nvml is None:
            return None
        return int(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))


class Bench:
    """The model of one shape, with caches for one load at a time."""

    def __init__(self, shape: Shape, decodes: Sequence[int], distinct_layers: int | None = None) -> None:
        self._shape = shape
        self._decodes = decodes
        self._distinct_layers = distinct_layers
        self._device = Device(0)
        self._power = Power(self._device)
        self._load: Load | None = None
        self._card: Card | None = None
        self._begin: tuple[float, float | None] = (0.0, None)

    def card(self, load: Load) -> Card:
        """The card with a model whose caches have room for a load."""
        if self._card is None or load is not self._load:
            self.close()
            model = Model(
                self._shape, kernels, slots=load.sequences, length=load.longest, distinct_layers=self._distinct_layers
            )
            decodes = sorted({min(size, load.sequences) for size in self._decodes})
            self._card, self._load = Card(self._device, model, decodes=decodes), load
        return self._card

    def begin(self) -> None:
        """A trial begins."""
        assert self._card is not None
        self._card.late_captures = 0
        self._card.switch_s.clear()
        self._begin = time.perf_counter(), self._power.joules()

    def end(self) -> dict[str, Any]:
        """What the card reports of the trial that has ended."""
        assert self._card is not None
        (began, before), after = self._begin, self._power.joules()
        watts = None if before is None or after is None else (after - before) / (time.perf_counter() - began)
        return {
            "late_captures": self._card.late_captures,
            "switch_us": spread(self._card.switch_s, 1e-6, 1),
            "power_w": None if watts is None else round(watts, 1),
            "sm_clock_mhz": self._power.sm_clock_mhz(),
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
        if self._card is not None:
            self._card.close()
        self._card = self._load = None
        gc.collect()
        torch.cuda.empty_cache()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
