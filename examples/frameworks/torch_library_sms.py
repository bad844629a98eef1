"""GEMMs of torch in a partition, with an SM count hint for cuBLAS where it was measured to help."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from cuda_gctx import Device
from cuda_gctx.interop.library_sms import decisions


def main() -> None:
    dev = Device(0)
    a = torch.randn(2048, 4096, device="cuda:0", dtype=torch.bfloat16)
    b = torch.randn(4096, 4096, device="cuda:0", dtype=torch.bfloat16)
    with dev.partition(control=8) as parts, parts.background.torch(library_sms="auto"):
        for _ in range(3):
            y = a @ b
    torch.cuda.synchronize()
    print(decisions)
    assert torch.allclose(y.float(), (a @ b).float(), rtol=0.02, atol=1.0)

    # What was measured once need not be measured by the next program.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decisions.json"
        decisions.save(path)
        decisions.clear()
        decisions.load(path)
    print(f"{len(decisions)} product measured")


if __name__ == "__main__":
    main()
