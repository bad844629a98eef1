"""The example server measures, chooses, says why, and answers every request."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cuda_gctx import Device, GraphSet, PartitionPool

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "serving" / "server.py"


@pytest.fixture(scope="module")
def server() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_server", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["example_server"] = module
    spec.loader.exec_module(module)
    return module


def printed(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, PROGRAM, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "CUDA_GCTX_DRIVER": "sim:h200@13.0"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_prints_what_it_chose_and_why() -> None:
    text = printed("--limit", "25ms", "--requests", "3")
    assert "(simulated), limit 25 ms" in text
    assert "chosen for a batch of 16: decode first: the highest rate of prefill within the limit; with plain" in text
    assert text.count("partitions do not pay here") == 3
    assert "3 requests, " in text
    assert "with decode first" in text.split("chunks of prompts: ")[1]


def test_a_shorter_limit_makes_it_partition() -> None:
    text = printed("--limit", "3ms", "--requests", "2")
    # An overlay and partitions of this size are equally good for the model that is made up.
    chosen = text.split("chosen for a batch of 1: ")[1].split(":")[0]
    assert chosen in ("overlay, 16 SMs left to decode", "partitions, 16 SMs for decode")
    assert "faster, and gaps reach" in text
    assert int(text.split(" switches")[0].split()[-1]) > 0
    assert f"with {chosen}" in text.split("chunks of prompts: ")[1]


def policy_of(server: ModuleType, of: dict[tuple[str, int], tuple[float, float]]) -> Any:
    """A policy in which plans of a kind have a gap in ms and a rate, by batch."""
    trials = [
        server.Trial(plan, batch, *of.get((plan.kind, batch), (90.0, 1.0)))
        for plan in server.plans()
        for batch in server.BATCHES
    ]
    return server.policy_of(trials)


def test_it_shows_plain_streams_and_steps_together_next_to_the_policy() -> None:
    lines = [line for line in printed("--limit", "25ms", "--requests", "4").splitlines() if line.startswith("served ")]
    found = {line.split(":")[0]: line for line in lines}
    assert list(found) == ["served by the policy", "served on plain streams", "served together"]
    late = {how: int(re.search(r"(\d+) of \d+ too long", line)[1]) for how, line in found.items()}  # type: ignore[index]
    longest = {how: float(re.search(r"([\d.]+) ms at most", line)[1]) for how, line in found.items()}  # type: ignore[index]
    assert late["served by the policy"] == late["served together"] == 0 < late["served on plain streams"]
    assert max(longest["served by the policy"], longest["served together"]) < 25 < longest["served on plain streams"]


def test_a_limit_that_nothing_keeps_is_said(server: ModuleType) -> None:
    policy = policy_of(server, {("priority", 4): (40.0, 5.0)})
    text = server.reason(policy, 25.0, 4)
    assert text.startswith("decode first: no plan keeps 90% of 25 ms, this one has the shortest gaps")


def test_the_plan_follows_the_batch(server: ModuleType, dev: Device) -> None:
    policy = policy_of(
        server,
        {("streams", 1): (5.0, 100.0), ("streams", 4): (5.0, 100.0), ("partitions", 16): (8.0, 50.0)},
    )
    with PartitionPool(dev) as pool, GraphSet() as graphs:
        one = server.Server(pool, graphs, server.MadeUpModel(), policy, 25.0)
        kinds = []
        for size in (0, 4, 5, 40):
            one.batch = [server.Request(1, 1)] * size
            one.switch(one.choose())
            kinds.append(one.plan.kind)
        assert kinds == ["streams", "streams", "partitions", "partitions"]
        assert one.switches == 2
        dev.sync()


def test_limits_have_units(server: ModuleType) -> None:
    assert server.milliseconds("25ms") == server.milliseconds("25") == server.milliseconds("0.025s") == 25.0
    for wrong in ("0ms", "-1", "soon"):
        with pytest.raises(ValueError, match=r"limit is more than|could not convert"):
            server.milliseconds(wrong)


def test_it_is_short_enough_to_be_copied() -> None:
    assert len(PROGRAM.read_text().splitlines()) <= 360
