"""The head of a result, and where its file goes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cuda_gctx import Device
from cuda_gctx.measure.machine import described as machine_described


def described(device: Device, what: str) -> dict[str, Any]:
    """What was measured, on what, and when."""
    return {"_what": what, **machine_described(device)}


def file_name(result: dict[str, Any], kind: str) -> str:
    """The name of the file of a result: card, driver, and which benchmark it is."""
    card = re.sub(r"[^a-z0-9]+", "-", result["card"].removeprefix("NVIDIA ").lower()).strip("-")
    return f"{card}-driver-{result['cuda']}-{kind}.json"


def folder_of_results(wanted: Path | None, default: Path) -> Path:
    """The folder for the file, made if it is not there."""
    folder = wanted or default
    folder.mkdir(parents=True, exist_ok=True)
    return folder
