"""The executor on a GPU: steps as CUDA graphs of torch, on streams of the whole device or of partitions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from statistics import median
from typing import Any, NamedTuple

import torch

from cuda_gctx import Device, Event, EventOptions, GraphSet, PartitionPool, Stream
from cuda_gctx.interop.torch import torch_stream, use
from serving.contenders import CHUNKS, chunk_for
from serving.model import SEGMENTS, Frame, Model, Workspace
from serving.policy import plan_of
from serving.work import ONE, Done, Lane, Placement, Step

TIMED = EventOptions(timing_enabled=True)


class Shot(NamedTuple):
    """What a graph is captured for: a lane, where it runs, and the sizes of a step."""

    lane: Lane
    placement: Placement
    frame: Frame


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
        self.most_tokens = most_tokens
        self.pool = PartitionPool(device)
        self.graphs = GraphSet(framework="torch") if graphs is None else graphs
        self.spare = device.create_stream()  # of the whole device, for what is not a step of a lane
        self.spaces: dict[Lane, Workspace] = {
            "decode": Workspace(model, self.decodes[-1] + most_tokens, self.decodes[-1]),
            "prefill": Workspace(model, most_tokens, 0),
        }
        self._running: dict[Lane, _Running] = {}
        # Prompts on the host, by slot. A slot is given away again only when the answer to its prompt has ended.
        pinned = model.device.type == "cuda"
        self._prompts = torch.zeros(model.slots, model.length, dtype=torch.int32, pin_memory=pinned)
        self._to_write: dict[int, int] = {}  # tokens that are not on the device yet, by slot
        self._placement: Placement | None = None
        self._streams: dict[Placement, dict[str, Stream]] = {}
        self._torchs: dict[Stream, Any] = {}
        # The default stream has filled weights and buffers, and other streams are not ordered behind it.
        device.sync()
        self._began = time.perf_counter()
        # Whether the GEMMs of a lane get its SM count as a hint, by SMs and lane: else they are sized for the device.
        self.hints: dict[tuple[int, str], bool] = {}
        self.late_captures = 0  # graphs that were missing when a step needed them

    # Places

    def stream(self, lane: Lane, placement: Placement) -> Stream:
        """The stream of a lane, which is the same one whenever the placement comes back."""
        if placement not in self._streams:
            self._switch(placement)
        return self._streams[placement][lane]

    def _switch(self, placement: Placement) -> None:
        """Make a placement the current one, behind the work of the one before on the SMs that they share."""
        self._streams[placement] = plan_of(placement, self.device.sm_count).switch(self.pool)
        self._placement = placement

    # Graphs

    def shot(self, lane: Lane, step: Step, placement: Placement) -> Shot:
        """The graph that serves a step: the smallest sizes of which there are graphs."""
        decodes = next(size for size in (0, *self.decodes) if size >= len(step.rows))
        # Decodes and prompts together have the rows of a chunk.
        tokens = chunk_for(decodes + step.prompt_tokens) - decodes if step.segments else 0
        # Next to decodes, ends cost nothing.
        ends = SEGMENTS if tokens and (decodes or any(segment.last for segment in step.segments)) else 0
        return Shot(lane, placement, self.model.frame(decodes, tokens, ends))

    def prepare(self, shots: Iterable[Shot]) -> None:
        """Capture the graphs that are missing: those of the shots, and those of smaller steps at the same places.

        A capture in a trial costs gaps, so a shot that was missing brings those that may follow.
        """
        asked = dict.fromkeys(shots)
        for shot in dict.fromkeys(chain(asked, *map(self._smaller, asked))):
            self._capture(self.stream(shot.lane, shot.placement), shot)

    def _smaller(self, shot: Shot) -> Iterator[Shot]:
        decodes = [size for size in self.decodes if size <= shot.frame.decodes] or [0]
        rows = [chunk for chunk in CHUNKS if chunk <= shot.frame.rows] if shot.frame.prompt_tokens else []
        for size in decodes:
            for chunk in [some - size for some in rows if some > size] or [0]:
                for ends in dict.fromkeys((SEGMENTS * bool(chunk), SEGMENTS * bool(chunk and size))):
                    yield shot._replace(frame=self.model.frame(size, chunk, ends))

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Makes a stream torch's current one, without ordering it."""
        block: AbstractContextManager[Any] = torch.cuda.stream(self._torch(stream))
        return block

    def aside(self) -> Any:
        """The torch stream on which decodes attend next to prompts of the same step, on the whole device."""
        return self._torch(self.spare)

    def _torch(self, stream: Stream) -> Any:
        found = self._torchs.get(stream)
        if found is None:
            found = self._torchs[stream] = torch_stream(stream)
        return found

    def _key(self, stream: Stream, shot: Shot) -> tuple[Any, ...]:
        hinted = self.hints.get((stream.resources.sm.sm_count, shot.lane), False)
        return shot.lane, shot.frame, hinted

    def hinted(self, stream: Stream) -> AbstractContextManager[Any]:
        """Gives libraries the SM count of a stream, which is torch's current one."""
        return use(stream, library_sms="on")

    def _capture(self, stream: Stream, shot: Shot) -> None:
        key = self._key(stream, shot)
        if (stream, key) not in self.graphs:
            space, sms = self.spaces[shot.lane], stream.resources.sm.sm_count
            aside = self.aside() if shot.frame.decodes and shot.frame.prompt_tokens else None
            with self.on(stream):
                space.load(shot.frame, Step())
            stream.sync()

            def run(_: Any) -> None:
                with self.hinted(stream) if key[-1] else nullcontext():
                    self.model.run(shot.frame, space, sms=sms, aside=aside)

            self.graphs.capture(stream, key, run)
            stream.sync()

    # The executor

    def now(self) -> float:
        return time.perf_counter() - self._began

    def admit(self, slot: int, prompt: int, seed: int) -> None:
        """A prompt of random tokens for a slot, which its first step copies to the device."""
        generator = torch.Generator().manual_seed(seed)
        torch.randint(self.model.shape.vocabulary, (prompt,), generator=generator, out=self._prompts[slot, :prompt])
        self._to_write[slot] = prompt

    def launch(self, lane: Lane, step: Step, placement: Placement) -> None:
        if lane in self._running or (placement.kind == "one" and self._running):
            raise RuntimeError(f"the {lane} lane is busy")
        if placement != self._placement:
            self._switch(placement)
        shot, stream = self.shot(lane, step, placement), self.stream(lane, placement)
        key = self._key(stream, shot)
        if (stream, key) not in self.graphs:
            self.late_captures += 1
            self.prepare([shot])
        with self.on(stream):
            for segment in step.segments:
                if segment.slot in self._to_write:
                    self.model.write(segment.slot, self._prompts[segment.slot, : self._to_write.pop(segment.slot)])
            self.spaces[lane].load(shot.frame, step)
        begin = stream.record(None, TIMED)
        self.graphs.replay(stream, key)
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

    @property
    def busy(self) -> bool:
        """Whether a step is running."""
        return bool(self._running)

    # Measuring

    def seconds_on(self, stream: Stream, lane: Lane, step: Step, *, times: int = 3) -> float:
        """The median time on the device of a step that runs alone on a stream, with the buffers of a lane."""
        shot = self.shot(lane, step, ONE)
        key = self._key(stream, shot)
        self._capture(stream, shot)
        found = []
        for _ in range(times + 1):
            with self.on(stream):
                self.spaces[lane].load(shot.frame, step)
            begin = stream.record(None, TIMED)
            self.graphs.replay(stream, key)
            end = stream.record(None, TIMED)
            end.sync()
            found.append((end - begin) / 1e3)
        return median(found[1:])

    def close(self) -> None:
        self.device.sync()
        self.graphs.drop()
        self._torchs.clear()
        self._running.clear()
        self._streams.clear()
        self.pool.close()
        self.spare.close()

    def __enter__(self) -> Card:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
