"""Order and ownership in a pool: random programs and all pairs of plans, against the model of order_model.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import CUDAError, Device
from cuda_gctx.partitions.arrangements import Arrangements
from cuda_gctx.partitions.partitions import Partition, with_background
from cuda_software_driver import session

from .order_model import Program, pairs_of_plans

pytestmark = pytest.mark.sim_only

# Two programs on each: `python tests/partitions/order_model.py` runs others, on all cards and drivers.
MACHINES = (
    ("h200", "12.4"),
    ("h200", "13.0"),
    ("a100", "13.1"),
    ("b200", "13.4"),
    ("rtx5080", "12.8"),
    ("thor", "13.1"),
)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("card", "driver"), MACHINES)
def test_random_programs_keep_both_orders_and_own_their_sms(card: str, driver: str, seed: int) -> None:
    with session(card, driver=driver, check=False):
        assert Program(Device(0), seed).run() == []


@pytest.mark.parametrize("seed", [43, 45, 47])
def test_what_is_recorded_again_is_behind_no_older_wait(seed: int) -> None:
    """Programs in which work overlaps if a wait counts for an event that was recorded anew after it."""
    with session("h200", driver="13.0", check=False):
        assert Program(Device(0), seed).run() == []


def orders_nothing(self: Arrangements, new: Any) -> None:
    self.current = new


def takes_open_for_used(add: Callable[..., Any]) -> Callable[..., Any]:
    """Each place that is open is in use, by a part of its own."""

    def wrong(self: Arrangements, key: object, partitions: Any, uses: Any, streams: Any = None) -> Any:
        places = {place.context.id if isinstance(place, Partition) else place: place for _, place in uses}
        for part in with_background(partitions) if partitions is not None else ():
            places.setdefault(part.context.id, part)
        return add(self, key, partitions, [(f"{number}", place) for number, place in places.items()], streams)

    return wrong


def knows_places_for_parts(add: Callable[..., Any]) -> Callable[..., Any]:
    """A place is in use whichever part is there."""

    def wrong(self: Arrangements, key: object, partitions: Any, uses: Any, streams: Any = None) -> Any:
        places = {place.context.id if isinstance(place, Partition) else place: place for _, place in uses}
        return add(self, key, partitions, [(f"{number}", place) for number, place in places.items()], streams)

    return wrong


def orders_no_graphs(*args: object) -> None:
    return None


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("enter", orders_nothing),
        ("add", takes_open_for_used(Arrangements.add)),
        ("add", knows_places_for_parts(Arrangements.add)),
        ("_order_capture", orders_no_graphs),
    ],
    ids=["orders nothing", "takes what is open for what is in use", "takes a place for its part", "orders no graphs"],
)
def test_the_model_finds_a_wrong_rule(monkeypatch: pytest.MonkeyPatch, method: str, wrong: Any) -> None:
    monkeypatch.setattr(Arrangements, method, wrong)
    for known in ("switch_known", "switch_to_known"):  # so that all switches are made by enter()
        monkeypatch.setattr(Arrangements, known, lambda self, key: None)

    def is_found(seed: int) -> bool:
        with session("h200", driver="13.0", check=False):
            try:
                return bool(Program(Device(0), seed).run())
            except CUDAError:  # of a graph with streams that nothing joins
                return True

    assert any(is_found(seed) for seed in range(10))


@pytest.mark.parametrize("told", [False, True], ids=["SMs are unknown", "SMs are known"])
def test_every_pair_of_plans_that_share_layouts_keeps_both_orders(dev: Device, told: bool) -> None:
    assert pairs_of_plans(dev, told) == []
