"""``cuda-gctx info``: the devices, the driver, and what it supports."""

from __future__ import annotations

from typing import Any

import click

from cuda_gctx import CUDAError, Device, FeatureNotSupported, system
from cuda_gctx.cli._options import device_number, device_of, on_driver
from cuda_gctx.cli._output import ResultTable, console, driver_version, write_json
from cuda_gctx.measure.machine import memory_of


def _resources(device: Device) -> dict[str, Any]:
    """The resources that can be split, and the free memory; all None if the driver has no green contexts."""
    try:
        whole = device.resources.sm
    except FeatureNotSupported:
        return dict.fromkeys(("min_partition_size", "coscheduled_alignment", "memory_free", "memory_total"))
    free: int | None
    total: int | None
    try:
        free, total = memory_of(device)
    except CUDAError:  # it needs a context, which a device in exclusive use by another process refuses
        free = total = None
    return {
        "min_partition_size": whole.min_partition_size,
        "coscheduled_alignment": whole.coscheduled_alignment,
        "memory_free": free,
        "memory_total": total,
    }


def _workqueue(device: Device) -> dict[str, Any] | None:
    try:
        queue = device.resources.workqueue
    except FeatureNotSupported:
        return None
    return {"sharing_scope": queue.sharing_scope, "concurrency_limit": queue.concurrency_limit}


def _device(device: Device) -> dict[str, Any]:
    return {
        "id": device.device_id,
        "name": device.name,
        "uuid": device.uuid,
        "pci_bus_id": device.pci_bus_id,
        "compute_capability": ".".join(map(str, device.compute_capability)),
        "sm_count": device.sm_count,
        **_resources(device),
        "workqueue": _workqueue(device),
    }


def _information(number: int | None) -> dict[str, Any]:
    return {
        "driver": driver_version(),
        "driver_path": system.driver_path,
        "devices": [_device(Device(n)) for n in range(Device.count())]
        if number is None
        else [_device(device_of(number))],
        "features": {
            name: {
                "title": feature.title,
                "available": feature.available,
                "needs": feature.needs,
                "reason": feature.reason,
            }
            for name, feature in system.features().items()
        },
    }


# Headings and fields of two narrow tables, which are easier to read on a terminal than a wide one.
TABLES = {
    ("device", "name", "compute", "SMs", "minimum", "alignment"): (
        "id",
        "name",
        "compute_capability",
        "sm_count",
        "min_partition_size",
        "coscheduled_alignment",
    ),
    ("device", "memory", "free", "workqueues", "PCI", "UUID"): (
        "id",
        "memory_total",
        "memory_free",
        "workqueue",
        "pci_bus_id",
        "uuid",
    ),
}


def _shown(field: str, value: Any) -> Any:
    if value is None:
        return None
    if field in ("memory_total", "memory_free"):
        return f"{value / 2**30:.1f} GiB"
    if field == "workqueue":
        return f"{value['sharing_scope']}, limit {value['concurrency_limit']}"
    return value


@click.command()
@on_driver
@device_number
def info(number: int | None, as_json: bool) -> None:
    """Show the devices, the driver, and its features.

    \b
    Examples:
      cuda-gctx info
      cuda-gctx info --profile b200 --driver 13.4
    """
    information = _information(number)
    if as_json:
        write_json("info", information)
        return
    out = console()
    out.print(f"CUDA driver {information['driver']}: {information['driver_path']}\n", soft_wrap=True)
    for header, fields in TABLES.items():
        rows = [[_shown(name, device[name]) for name in fields] for device in information["devices"]]
        out.print(ResultTable(header, rows))
        out.print()
    features = [
        (
            feature["title"],
            "yes" if feature["available"] else "no",
            f"{feature['needs']}+" if feature["needs"] else None,
        )
        for feature in information["features"].values()
    ]
    out.print(ResultTable(("feature", "supported", "CUDA driver"), features))
