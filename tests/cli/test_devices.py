"""``cuda-gctx info``, ``sizes``, ``plan`` and ``verify``: what they print is what the package does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cuda_gctx import (
    Device,
    FeatureNotSupported,
    IsolationError,
    Layout,
    PartitionSpec,
    SplitError,
    VerifyReport,
    WorkqueueResourceOptions,
    system,
)
from cuda_gctx.partitions import partition_sizes, plan, with_background
from cuda_gctx.partitions.verification import ContextProof

from ..common import DRIVERS
from .test_command_line import child, run

LAYOUTS = [(["16", "rest"], Layout(16, None)), (["decode=10", "prefill=0.5"], Layout(decode=10, prefill=0.5))]


def json_of(*arguments: str) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def row(text: str, first: str) -> list[str]:
    """The words of the line that begins with a word."""
    [found] = [line.split() for line in text.splitlines() if line.split()[:1] == [first]]
    return found


# ---- info


def test_info_reports_each_device_as_the_package_sees_it(dev: Device) -> None:
    found = json_of("info")["devices"]
    assert [entry["id"] for entry in found] == list(range(Device.count()))
    first = found[0]
    assert (first["name"], first["uuid"], first["pci_bus_id"]) == (dev.name, dev.uuid, dev.pci_bus_id)
    assert first["compute_capability"] == ".".join(map(str, dev.compute_capability))
    whole = dev.resources.sm
    assert first["sm_count"] == whole.sm_count
    assert first["min_partition_size"] == whole.min_partition_size
    assert first["coscheduled_alignment"] == whole.coscheduled_alignment
    assert 0 < first["memory_free"] <= first["memory_total"]


def test_info_shows_for_each_feature_whether_it_is_supported_and_since_when(dev: Device) -> None:
    features = json_of("info")["features"]
    text = run("info").stdout
    for name, feature in system.features().items():
        assert features[name] == {
            "title": feature.title,
            "available": bool(feature),
            "needs": feature.needs,
            "reason": feature.reason,
        }
        line = next(line for line in text.splitlines() if line.startswith(feature.title))
        assert line.removeprefix(feature.title).split() == ["yes" if feature else "no", f"{feature.needs}+"]


def test_info_shows_workqueues_where_the_driver_has_them(sim: Callable[..., Any]) -> None:
    assert json_of("info", "--profile", "h200", "--driver", "13.0")["devices"][0]["workqueue"] is None
    sim("h200", driver="13.1")
    queue = Device(0).resources.workqueue
    expected = {"sharing_scope": queue.sharing_scope, "concurrency_limit": queue.concurrency_limit}
    assert json_of("info")["devices"][0]["workqueue"] == expected
    assert f"{queue.sharing_scope}, limit {queue.concurrency_limit}" in run("info").stdout


def test_info_shows_what_there_is_on_a_driver_without_green_contexts(sim: Callable[..., Any]) -> None:
    sim("h200", driver="12.3")
    [device] = json_of("info")["devices"]
    assert device["sm_count"] == 132
    assert device["min_partition_size"] is None
    assert re.search(r"^green contexts +no +12\.4\+", run("info").stdout, re.MULTILINE)


def test_info_does_without_what_it_cannot_ask(sim: Callable[..., Any]) -> None:
    sim("h200").fail("cuMemGetInfo")
    [device] = json_of("info")["devices"]
    assert device["memory_free"] is None
    assert device["sm_count"] == 132


# ---- sizes


def test_sizes_are_those_of_the_package(dev: Device) -> None:
    expected = partition_sizes(dev)
    assert json_of("sizes")["sizes"] == [asdict(size) for size in expected]
    text, everything = run("sizes").stdout, run("sizes", "--all").stdout
    assert dev.name in text.splitlines()[0]
    aligned = [str(size.sm_count) for size in expected if size.aligned]
    others = [str(size.sm_count) for size in expected if not size.aligned]
    assert [line.split()[0] for line in text.splitlines()[2 : len(aligned) + 2]] == aligned
    if others:
        assert text.splitlines()[-1].startswith(f"{len(others)} more sizes need backfill: cuda-gctx sizes --all")
    assert [line.split()[0] for line in everything.splitlines()[2:]] == aligned + others


# ---- plan


@pytest.mark.parametrize(("words", "layout"), LAYOUTS, ids=["by position", "by name"])
def test_a_plan_is_what_opening_the_layout_gives(dev: Device, words: list[str], layout: Layout) -> None:
    planned = plan(dev, layout)
    document = json_of("plan", *words)
    with dev.partition(layout) as parts:
        opened = [
            (part.name, part.requested, part.sm_count, part.coscheduled_alignment, part.strategy)
            for part in with_background(parts)
        ]
    assert [tuple(asdict(part).values()) for part in planned] == opened
    assert [tuple(part.values()) for part in document["partitions"]] == opened
    assert document["fits"] is True
    assert document["left"] == dev.sm_count - sum(sms for name, _, sms, *_ in opened if name != "background")


def test_a_plan_makes_no_context(sim: Callable[..., Any]) -> None:
    machine = sim("h200")
    run("plan", "16", "rest")
    assert machine.calls("cuGreenCtxCreate") == 0


@pytest.mark.sim_only
def test_a_plan_shows_what_was_asked_and_what_is_left(sim: Callable[..., Any]) -> None:
    sim("h200", driver="13.0")
    text = run("plan", "decode=10", "prefill=rest").stdout
    assert row(text, "decode")[:3] == ["decode", "10", "16"]
    assert row(text, "prefill")[:3] == ["prefill", "rest", "116"]
    assert text.splitlines()[-1] == "0 of 132 SMs remain: there is no background partition"
    text = run("plan", "decode=10").stdout
    assert row(text, "background")[:2] == ["background", "116"]
    assert text.splitlines()[-1] == "116 of 132 SMs remain for the background partition"


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_plan_for_another_machine_needs_no_gpu_and_leaves_this_one_alone(dev: Device, driver: str) -> None:
    before = plan(dev, Layout(16, None))
    document = json_of("plan", "16", "24", "--profile", "b200", "--driver", driver)
    assert document["device"]["name"] == "NVIDIA B200 (simulated)"
    assert document["driver"] == driver
    assert document["partitions"][0]["strategy"] == ("structured" if float(driver) > 13 else "composed")
    assert plan(dev, Layout(16, None)) == before


def test_a_layout_that_does_not_fit_ends_with_1_and_says_what_would(dev: Device) -> None:
    many = dev.sm_count
    with pytest.raises(SplitError) as refused:
        plan(dev, Layout(decode=16, prefill=many))
    done = run("plan", "decode=16", f"prefill={many}")
    assert done.exit_code == 1
    assert done.stderr == f"Error: {refused.value}\n"
    assert not done.stdout
    document = json.loads(run("plan", "decode=16", f"prefill={many}", "--json").stdout)
    assert document["fits"] is False
    assert document["reason"] == str(refused.value)
    [decode, prefill] = document["suggestion"]["count"]
    assert run("plan", f"decode={decode}", f"prefill={prefill}").exit_code == 0


def test_a_fraction_that_is_too_small_is_a_no(dev: Device) -> None:
    done = run("plan", "0.001", "--json")
    assert done.exit_code == 1
    assert "smallest partition" in done.stderr
    assert json.loads(done.stdout)["suggestion"] is None


@pytest.mark.parametrize("driver", ["13.0", "13.1"])
def test_a_plan_refuses_what_opening_refuses(sim: Callable[..., Any], driver: str) -> None:
    sim("h200", driver=driver)
    layout = Layout(decode=PartitionSpec(16, workqueue=WorkqueueResourceOptions(concurrency_limit=2)))
    if driver == "13.1":
        assert plan(Device(0), layout)[0].sm_count == 16
    else:
        with pytest.raises(FeatureNotSupported, match=r"13\.1"):
            plan(Device(0), layout)


# ---- verify


def test_verify_proves_a_layout(dev: Device) -> None:
    document = json_of("verify", "decode=16", "prefill=rest")
    assert document["isolated"] is True
    planned = {part.name: part.sm_count for part in plan(dev, Layout(decode=16, prefill=None))}
    assert {proof["name"]: len(proof["sm_ids"]) for proof in document["report"]["contexts"]} == planned


def test_verify_shows_the_report_and_the_map(dev: Device) -> None:
    with dev.partition(small=0.25, large=None) as parts:
        report = parts.verify()
    shown = run("verify")
    assert shown.exit_code == 0
    assert [line.rstrip() for line in shown.stdout.splitlines()] == [
        *str(report).splitlines(),
        "",
        *str(report.sm_map()).splitlines(),
    ]


def test_a_probe_that_does_not_finish_is_a_message(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_slow(*_: object, **__: object) -> VerifyReport:
        raise RuntimeError("the probe did not finish")

    monkeypatch.setattr("cuda_gctx.partitions.partitions.verify", too_slow)
    done = run("verify")
    assert done.exit_code == 1
    assert done.stderr == "Error: the probe did not finish\n"


@pytest.mark.sim_only
def test_the_map_has_the_colours_of_the_picture(dev: Device) -> None:
    with dev.partition(small=0.25, large=None) as parts:
        picture = parts.verify().sm_map()
    plain = child("verify").stdout
    shown = child("verify", FORCE_COLOR="1", TERM="xterm-256color", COLORTERM="truecolor").stdout
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == plain
    seen = {
        (letters[0], f"#{int(red):02x}{int(green):02x}{int(blue):02x}")
        for red, green, blue, letters in re.findall(r"\x1b\[38;2;(\d+);(\d+);(\d+)m(\w+)", shown)
    }
    assert seen == {(letter, picture.colours[name].lower()) for name, letter in picture.letters.items()}
    assert "AA" in plain
    assert "AA" not in re.sub(r"\x1b\[38[^m]*m\w+", "", shown)


@pytest.mark.sim_only
def test_contexts_keep_apart_on_a_terminal_of_sixteen_colours() -> None:
    layout = [f"{name}=16" for name in ("first", "second", "third", "fourth", "fifth", "sixth")]
    shown = child("verify", *layout, FORCE_COLOR="1", TERM="xterm", COLORTERM="").stdout
    colour_of = {(letters[0], colour) for colour, letters in re.findall(r"\x1b\[(\d+)m([A-Z])+", shown)}
    assert [len(set(column)) for column in zip(*colour_of, strict=True)] == [7, 7]


@pytest.mark.parametrize("option", ["--svg", "--html"])
def test_a_map_that_cannot_be_written_takes_nothing_else_away(dev: Device, option: str) -> None:
    done = run("verify", "--json", option, "/dev/full")
    assert done.exit_code == 1
    assert done.stderr == "Error: cannot write '/dev/full': No space left on device\n"
    assert json.loads(done.stdout)["isolated"] is True


def test_verify_draws_the_map(dev: Device, tmp_path: Path) -> None:
    svg, html = tmp_path / "map.svg", tmp_path / "map.html"
    assert run("verify", "--svg", str(svg), "--html", str(html)).exit_code == 0
    assert "<svg" in svg.read_text()
    assert svg.read_text().strip() in html.read_text()
    assert dev.name in svg.read_text()


@pytest.mark.parametrize("profile", ["h200", "h100", "a100", "l40s", "rtx4090", "b200", "vr200", "rtx5080", "thor"])
def test_verify_has_a_layout_for_every_card(profile: str) -> None:
    assert json_of("verify", "--profile", profile)["isolated"] is True


def test_what_is_not_isolated_is_shown_and_ends_with_1(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def found_wanting(*_: object, **__: object) -> VerifyReport:
        proof = ContextProof("small", 2, (0, 1, 2))
        raise IsolationError(VerifyReport(dev.name, "13.0", (proof,), (), (), None, None))

    monkeypatch.setattr("cuda_gctx.partitions.partitions.verify", found_wanting)
    done = run("verify", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["isolated"] is False
    assert done.stderr == "Error: not isolated: small ran on 3 SMs, but should have 2\n"
    assert "NOT isolated" in run("verify").stdout


# ---- on hardware


@pytest.mark.gpu_only
@pytest.mark.parametrize("arguments", [["info"], ["sizes"], ["plan", "16", "rest"], ["verify", "16", "rest"]])
def test_on_a_gpu_the_program_answers_for_the_gpu(arguments: list[str]) -> None:
    done = child(*arguments)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert not done.stderr
    assert "simulated" not in done.stdout
    assert Device(0).name in done.stdout


@pytest.mark.gpu_only
def test_on_a_gpu_doctor_finds_the_driver_and_the_device(dev: Device) -> None:
    checks = {check["subject"]: check for check in json.loads(child("doctor", "--json").stdout)["checks"]}
    assert checks["driver"]["state"] == "ok"
    assert (checks["device 0"]["state"], checks["device 0"]["found"]) == ("ok", f"{dev.name}, {dev.sm_count} SMs")


@pytest.mark.gpu_only
def test_next_to_a_gpu_another_machine_can_be_asked_about() -> None:
    document = json.loads(child("plan", "16", "rest", "--profile", "b200", "--driver", "13.4", "--json").stdout)
    assert document["device"]["name"] == "NVIDIA B200 (simulated)"
