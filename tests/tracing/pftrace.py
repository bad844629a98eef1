"""Reads a file for ui.perfetto.dev, with the classes that Perfetto generates from its format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

# Machines with a card have no package index: the tests of files run where the test requirements are installed.
protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="perfetto is not installed")

INTERNED = ("event_names", "event_categories", "debug_annotation_names")


class Slice(NamedTuple):
    begin: int
    end: int
    name: str
    category: str = ""
    details: Mapping[str, Any] = {}


@dataclass
class Track:
    """A track with its events, in the order of the file. described: its descriptor."""

    described: Any
    slices: list[Slice] = field(default_factory=list)
    instants: list[tuple[int, str, str]] = field(default_factory=list)  # time, name, category
    values: list[tuple[int, int]] = field(default_factory=list)
    _open: Slice | None = None

    @property
    def number(self) -> int:
        return int(self.described.uuid)

    @property
    def name(self) -> str:
        return str(self.described.name)

    @property
    def parent(self) -> int:
        return int(self.described.parent_uuid)

    @property
    def rank(self) -> int:
        return int(self.described.sibling_order_rank)

    @property
    def pid(self) -> int:
        return int(self.described.process.pid)

    def add(self, time: int, event: Any, name: str, category: str, details: Mapping[str, Any]) -> None:
        """Add an event. Slices must neither overlap nor nest: the viewer would connect wrong ends."""
        kind = protos.TrackEvent.Type.Name(event.type)
        if kind == "TYPE_SLICE_BEGIN":
            assert self._open is None
            assert all(one.end <= time for one in self.slices[-1:])
            self._open = Slice(time, time, name, category, details)
        elif kind == "TYPE_SLICE_END":
            assert self._open is not None
            assert self._open.begin <= time
            self.slices.append(self._open._replace(end=time))
            self._open = None
        elif kind == "TYPE_INSTANT":
            self.instants.append((time, name, category))
        else:
            assert kind == "TYPE_COUNTER"
            self.values.append((time, event.counter_value))

    @property
    def is_whole(self) -> bool:
        return self._open is None


def read_packets(data: bytes) -> Any:
    """The packets of a trace."""
    trace = protos.Trace()
    trace.ParseFromString(data)
    return trace.packet


def read_tracks(data: bytes) -> list[Track]:
    """The tracks of a trace with their events. Each slice that begins ends."""
    tracks: dict[int, Track] = {}
    names: dict[str, dict[int, str]] = {kind: {} for kind in INTERNED}
    for packet in read_packets(data):
        if packet.sequence_flags & protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            names = {kind: {} for kind in INTERNED}
        for kind, interned in names.items():
            interned.update((entry.iid, entry.name) for entry in getattr(packet.interned_data, kind))
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            assert described.uuid not in tracks
            assert not described.parent_uuid or described.parent_uuid in tracks
            tracks[described.uuid] = Track(described)
        if packet.HasField("track_event"):
            event = packet.track_event
            assert packet.sequence_flags & protos.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            details = {
                names["debug_annotation_names"][detail.name_iid]: getattr(detail, detail.WhichOneof("value"))
                for detail in event.debug_annotations
            }
            name = names["event_names"][event.name_iid] if event.name_iid else ""
            category = ",".join(names["event_categories"][number] for number in event.category_iids)
            tracks[event.track_uuid].add(packet.timestamp, event, name, category, details)
    assert all(track.is_whole for track in tracks.values())
    return list(tracks.values())
