"""Reads a file for ui.perfetto.dev, by the numbers of the fields in Perfetto's documentation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Track:
    number: int
    name: str
    parent: int
    rank: int
    pid: int
    slices: list[tuple[int, int, str]] = field(default_factory=list)  # begin, end, name
    instants: list[tuple[int, str]] = field(default_factory=list)
    values: list[tuple[int, int]] = field(default_factory=list)


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: numbers, and bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        value, place = _varint(data, place)
        if key & 7 == 0:
            yield key >> 3, value
        else:
            assert key & 7 == 2, f"field {key >> 3} has wire type {key & 7}"
            yield key >> 3, data[place : place + value]
            place += value


def read_tracks(data: bytes) -> list[Track]:
    """The tracks of a trace with their events. Each slice that begins ends."""
    tracks: dict[int, Track] = {}
    open_slices: dict[int, list[tuple[int, str]]] = {}
    for number, packet in fields(data):
        assert number == 1
        assert isinstance(packet, bytes)
        found = dict(fields(packet))
        if isinstance(described := found.get(60), bytes):
            of_track = dict(fields(described))
            process = of_track.get(3, b"")
            pid = dict(fields(process)).get(1, 0) if isinstance(process, bytes) else 0
            name = of_track[2]
            assert isinstance(name, bytes)
            track = Track(
                *(int(of_track[1]), name.decode()), int(of_track.get(5, 0)), int(of_track.get(12, 0)), int(pid)
            )
            assert not track.parent or track.parent in tracks
            tracks[track.number] = track
            continue
        event = found[11]
        assert isinstance(event, bytes)
        of_event = dict(fields(event))
        time, track = int(found[8]), tracks[int(of_event[11])]
        name = of_event.get(23, b"")
        assert isinstance(name, bytes)
        if of_event[9] == 1:
            open_slices.setdefault(track.number, []).append((time, name.decode()))
        elif of_event[9] == 2:
            begin, text = open_slices[track.number].pop()
            track.slices.append((begin, time, text))
        elif of_event[9] == 3:
            track.instants.append((time, name.decode()))
        else:
            track.values.append((time, int(of_event[30])))
    assert not any(open_slices.values())
    return list(tracks.values())
