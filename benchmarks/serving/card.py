"""The executor on a GPU: steps as CUDA graphs of torch, on streams of the whole device or of partitions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import torch

from cuda_gctx import Device, Event, EventOptions, GraphSet, Partition, PartitionPool, Stream
from cuda_gctx.interop.torch import torch_stream
from serving.contenders import CHUNKS, chunk_for
from serving.model import SEGMENTS, Frame, Model, Workspace
from serving.work import ONE, Done, Lane, Placement, Step

TIMED = EventOptions(timing_enabled=True)
Place: TypeAlias = Partition | Stream


class Shot(NamedTuple):
    """What a graph is captured for: a lane, where it runs, the sizes of a step and its layers."""

    lane: Lane
    placement: Placement
    frame: Frame
    layers: tuple[int, int] | None


class _Running(NamedTuple):
    step: Step
    placement: Placement
    begin: Event
    end: Event


class Card:
    """Runs at most one step of each lane at a time. `decodes`: the sizes of decode batches that graphs are for."""

    def __init__(
        self,
        device: Device,
        model: Model,
        *,
        decodes: Sequence[int],
        most_tokens: int = CHUNKS[-1],
        graphs: GraphSet | None = None,
    ) -> None:
        self.device = device
        self.model = model
        self.decodes = sorted(decodes)
        self.pool = PartitionPool(device)
        self.graphs = GraphSet(framework="torch") if graphs is None else graphs
        _, highest = device.priority_range
        self._plain, self._second = device.create_stream(), device.create_stream()
        self._urgent = device.create_stream({"priority": highest})
        self.spaces: dict[Lane, Workspace] = {
            "decode": Workspace(model, self.decodes[-1] + most_tokens, self.decodes[-1]),
            "prefill": Workspace(model, most_tokens, 0),
        }
        self._running: dict[Lane, _Running] = {}
        self._prompts: dict[int, Any] = {}  # not on the device yet, by slot
        self._placement: Placement | None = None
        self._torchs: dict[Stream, Any] = {}
        self._began = time.perf_counter()
        self.late_captures = 0  # graphs that were missing when a step needed them
        self.switch_s: list[float] = []  # what the host spent in pool.switch
        self.poll_s = 0.0  # sleep between two polls; 0 polls without pause

    # Places

    def place(self, lane: Lane, placement: Placement) -> Place:
        """Where a lane runs, without switching to it."""
        if placement.kind == "one":
            return self._plain
        if placement.kind == "disjoint":
            return self.pool.get(decode=placement.decode_sms, prefill=None)[lane]
        if lane == "decode":
            return self._plain if placement.kind == "streams" else self._urgent
        if placement.prefill_sms is not None:  # an overlay
            # The same partition as in the layout of disjoint ones, and so the same context and graphs.
            return self.pool.get(decode=self.device.sm_count - placement.prefill_sms, prefill=None).prefill
        return self._second

    def sms(self, place: Place) -> int:
        return place.sm_count if isinstance(place, Partition) else self.device.sm_count

    def _switch(self, placement: Placement) -> None:
        """Order a new placement behind the work of the one before on the SMs that they share."""
        began = time.perf_counter()
        before = self._placement
        if placement.kind == "disjoint":
            self.pool.switch(decode=placement.decode_sms, prefill=None)
        if before is not None and (before.kind == "disjoint") != (placement.kind == "disjoint"):
            # Streams of the whole device are not part of a layout.
            old, new = ({self._stream(self.place(lane, one)) for lane in self.spaces} for one in (before, placement))
            for event in [stream.record() for stream in old]:
                for stream in new:
                    stream.wait(event)
        self._placement = placement
        self.switch_s.append(time.perf_counter() - began)

    @staticmethod
    def _stream(place: Place) -> Stream:
        return place.stream if isinstance(place, Partition) else place

    # Graphs

    def shot(self, lane: Lane, step: Step, placement: Placement) -> Shot:
        """The graph that serves a step: the smallest sizes of which there are graphs."""
        decodes = next(size for size in (0, *self.decodes) if size >= len(step.rows))
        tokens = chunk_for(step.prompt_tokens) if step.segments else 0
        ends = SEGMENTS if any(segment.last for segment in step.segments) and not step.partial else 0
        return Shot(lane, placement, self.model.frame(decodes, tokens, ends), step.layers)

    def prepare(self, shots: Iterable[Shot]) -> None:
        """Capture the graphs that are missing."""
        for shot in dict.fromkeys(shots):
            place = self.place(shot.lane, shot.placement)
            for begin, end in self._ranges(shot):
                self._capture(place, shot, begin, end)

    def _ranges(self, shot: Shot) -> list[tuple[int, int]]:
        """A graph for the whole model, or one for each layer."""
        if shot.layers is None:
            return [(0, self.model.shape.layers)]
        return [(layer, layer + 1) for layer in range(*shot.layers)]

    def on(self, place: Place) -> AbstractContextManager[Any]:
        """Makes the stream of a place torch's current one, without ordering it."""
        block: AbstractContextManager[Any] = torch.cuda.stream(self._torch(place))
        return block

    def aside(self) -> Any:
        """The torch stream on which decodes attend next to prompts of the same step, on the whole device."""
        return self._torch(self._second)

    def _torch(self, place: Place) -> Any:
        stream = self._stream(place)
        found = self._torchs.get(stream)
        if found is None:
            found = self._torchs[stream] = torch_stream(stream)
        return found

    def _capture(self, place: Place, shot: Shot, begin: int, end: int) -> None:
        key = (shot.lane, shot.frame, begin, end)
        if (place, key) not in self.graphs:
            space, sms = self.spaces[shot.lane], self.sms(place)
            aside = self.aside() if shot.frame.decodes and shot.frame.prompt_tokens else None
            with self.on(place):
                space.load(shot.frame, Step())
            self._stream(place).sync()

            def run(_: Any) -> None:
                self.model.run(shot.frame, space, layers=(begin, end), sms=sms, aside=aside)

            self.graphs.capture(place, key, run)
            self._stream(place).sync()

    # The executor

    def now(self) -> float:
        return time.perf_counter() - self._began

    def admit(self, slot: int, prompt: int, seed: int) -> None:
        """A prompt of random tokens for a slot, which its first step copies to the device."""
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(self.model.shape.vocabulary, (prompt,), generator=generator, dtype=torch.int32)
        self._prompts[slot] = tokens.pin_memory() if self.model.device.type == "cuda" else tokens

    def launch(self, lane: Lane, step: Step, placement: Placement) -> None:
        if lane in self._running or (placement.kind == "one" and self._running):
            raise RuntimeError(f"the {lane} lane is busy")
        if placement != self._placement:
            self._switch(placement)
        shot, place = self.shot(lane, step, placement), self.place(lane, placement)
        keys = [(shot.lane, shot.frame, begin, end) for begin, end in self._ranges(shot)]
        if any((place, key) not in self.graphs for key in keys):
            self.late_captures += 1
            self.prepare([shot])
        stream = self._stream(place)
        with self.on(place):
            for segment in step.segments:
                if segment.slot in self._prompts:
                    self.model.write(segment.slot, self._prompts.pop(segment.slot))
            if step.layers is None or step.layers[0] == 0:
                self.spaces[lane].load(shot.frame, step)
        begin = stream.record(None, TIMED)
        for key in keys:
            self.graphs.replay(place, key)
        end = stream.record(None, TIMED)
        self._running[lane] = _Running(step, placement, begin, end)

    def finished(self) -> list[Done]:
        found = []
        for lane, one in list(self._running.items()):
            if one.end.is_done:
                del self._running[lane]
                # Events are compared within their stream; the end is when the host sees it.
                end = self.now()
                found.append(Done(lane, one.step, one.placement, end - (one.end - one.begin) / 1e3, end))
        return found

    def rest(self, until: float) -> None:
        """Poll until a step has ended, or until a time."""
        while not any(one.end.is_done for one in self._running.values()) and self.now() < until:
            if not self._running and until == float("inf"):
                raise RuntimeError("nothing runs, and nothing is expected")
            if self.poll_s:
                time.sleep(self.poll_s)

    @property
    def busy(self) -> bool:
        """Whether a step is running."""
        return bool(self._running)

    # Measuring

    def seconds_in(self, place: Place, lane: Lane, step: Step, *, times: int = 3) -> float:
        """The median time on the device of a step that runs alone in a place, with the buffers of a lane."""
        shot = self.shot(lane, step, ONE)
        stream, key = self._stream(place), (lane, shot.frame, 0, self.model.shape.layers)
        self._capture(place, shot, *key[2:])
        found = []
        for _ in range(times + 1):
            with self.on(place):
                self.spaces[lane].load(shot.frame, step)
            begin = stream.record(None, TIMED)
            self.graphs.replay(place, key)
            end = stream.record(None, TIMED)
            end.sync()
            found.append((end - begin) / 1e3)
        return median(found[1:])

    def free_bytes(self) -> int:
        """Free device memory."""
        free: int = torch.cuda.mem_get_info()[0]
        return free

    def close(self) -> None:
        self.device.sync()
        self.graphs.drop()
        self._torchs.clear()
        self._running.clear()
        self.pool.close()
        for stream in (self._plain, self._second, self._urgent):
            stream.close()

    def __enter__(self) -> Card:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
