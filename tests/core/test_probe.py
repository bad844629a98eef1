"""The probe as a load: kernels that keep SMs busy for a known time, and timestamps in the order of streams."""

from __future__ import annotations

import pytest

from cuda_gctx import Device
from cuda_gctx._core.extension import Stamps, spin

SPIN_NS = 200_000


def test_stamps_report_when_and_on_which_sms_the_work_between_them_ran(dev: Device) -> None:
    with dev.partition(small=16) as parts:
        small, other = parts.small.stream, parts.background.stream
        stamps = Stamps(parts.device, 4)
        stamps.write(small, 0)
        spin(small, 1, SPIN_NS)
        stamps.write(small, 1)
        stamps.write(other, 3)
        small.sync()
        other.sync()
        begin, end, unused, elsewhere = stamps.read()
        assert begin is not None
        assert end is not None
        assert elsewhere is not None
        assert unused is None
        assert end[1] - begin[1] >= SPIN_NS
        owners = {sm: proof.name for proof in parts.verify().contexts for sm in proof.sm_ids}
        assert [owners[begin[0]], owners[end[0]], owners[elsewhere[0]]] == ["small", "small", "background"]


def test_a_stamp_waits_for_room_on_an_sm_of_its_context(dev: Device) -> None:
    with dev.partition(small=8) as parts:
        first, second = parts.small.stream_pool(2)
        stamps = Stamps(dev, 2)
        stamps.write(first, 0)
        spin(first, 4 * parts.small.sm_count, SPIN_NS)  # two blocks fill an SM: two rounds
        stamps.write(second, 1)
        first.sync()
        second.sync()
        begin, waited = stamps.read()
        assert begin is not None
        assert waited is not None
        assert waited[1] - begin[1] >= SPIN_NS


def test_spinning_does_not_wait_and_takes_as_long_as_requested(dev: Device) -> None:
    with dev.create_stream() as stream:
        stamps = Stamps(stream.device, 2)
        stamps.write(stream, 0)
        for _ in range(3):
            spin(stream, 1, SPIN_NS)
        stamps.write(stream, 1)
        stream.sync()
        begin, end = stamps.read()
    assert begin is not None
    assert end is not None
    assert end[1] - begin[1] >= 3 * SPIN_NS


@pytest.mark.parametrize(("blocks", "spin_ns"), [(0, 1), (-1, 1), (2**31, 1), (1, -1), (1, 1_000_000_001)])
def test_a_load_that_cannot_be_is_refused(blocks: int, spin_ns: int, dev: Device) -> None:
    with dev.create_stream() as stream, pytest.raises(ValueError, match="must be an int from"):
        spin(stream, blocks, spin_ns)


def test_places_that_are_not_there_are_refused(dev: Device) -> None:
    with dev.create_stream() as stream:
        with pytest.raises(ValueError, match="capacity must be an int from 1"):
            Stamps(stream.device, 0)
        stamps = Stamps(stream.device, 2)
        for place in (-1, 2):
            with pytest.raises(IndexError, match="from 0 to 1"):
                stamps.write(stream, place)


def test_a_closed_stream_takes_no_load_and_no_stamp(dev: Device) -> None:
    stamps = Stamps(dev, 1)
    stream = dev.create_stream()
    stream.close()
    with pytest.raises(RuntimeError, match="closed"):
        spin(stream, 1, 1)
    with pytest.raises(RuntimeError, match="closed"):
        stamps.write(stream, 0)
    assert stamps.read() == [None]
