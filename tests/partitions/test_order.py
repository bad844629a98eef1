"""Order and ownership in a pool: random programs and all pairs of plans, against the model of order_model.py."""

from __future__ import annotations

from typing import Any

import pytest

from cuda_gctx import Device
from cuda_gctx._core.extension import Switching
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


class OrdersNothing(Switching):
    """Notes which arrangement is current, and orders no work."""

    now: Any = None

    @property
    def current(self) -> Any:
        return self.now

    def switch_known(self, spelled: object) -> None:
        return None

    def switch_to(self, key: object) -> bool:
        self.now = key
        return key in self


class TakesPlacesForParts(Switching):
    """Takes a place for in use whichever part is there."""

    def add(self, key: object, uses: Any) -> None:
        seen: dict[object, Any] = {}
        for _, place, sms in uses:
            number = place.context.id if sms is None else place.id
            seen.setdefault((number, place if sms is None else None), (f"{len(seen)}", place, sms))
        names = {(place if sms is None else place.id): f"{place}" for _, place, sms in seen.values()}
        super().add(key, [(names[place if sms is None else place.id], place, sms) for _, place, sms in seen.values()])


@pytest.mark.parametrize("wrong", [OrdersNothing, TakesPlacesForParts])
def test_the_model_finds_a_wrong_rule(monkeypatch: pytest.MonkeyPatch, wrong: type[Switching]) -> None:
    monkeypatch.setattr("cuda_gctx.partitions.pool.Switching", wrong)

    def is_found(seed: int) -> bool:
        with session("h200", driver="13.0", check=False):
            return bool(Program(Device(0), seed).run())

    assert any(is_found(seed) for seed in range(10))


def test_every_pair_of_plans_that_share_layouts_keeps_both_orders(dev: Device) -> None:
    assert pairs_of_plans(dev) == []
