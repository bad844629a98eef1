"""Control steps in CUDA graphs next to bulk work, with torch: graphs by partition, replayed in the layout in force."""

from __future__ import annotations

import torch

from cuda_gctx import Device, GraphSet, Layout, PartitionPool
from cuda_gctx.interop.torch import fork

LAYOUTS = (Layout(control=16, rest=None), Layout(control=32, rest=None))


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))).to("cuda:0", torch.bfloat16)
    many_rows = torch.randn(2048, 512, device="cuda:0", dtype=torch.bfloat16)
    inputs = {batch: torch.randn(batch, 512, device="cuda:0", dtype=torch.bfloat16) for batch in (1, 8)}

    with torch.inference_mode(), PartitionPool(Device(0)) as pool, GraphSet(pool, framework="torch") as graphs:
        expected = {batch: model(x).clone() for batch, x in inputs.items()}
        whole = model(many_rows)
        for layout in LAYOUTS:
            pool.switch(layout)
            for batch, x in inputs.items():
                graphs.capture("control", batch, lambda part, x=x: model(x))
        torch.cuda.synchronize()
        print(graphs)

        right = True
        for layout in (*LAYOUTS, LAYOUTS[0]):
            parts = pool.switch(layout)
            for batch, expected_rows in expected.items():
                with fork() as start:
                    with parts.rest.torch(after=start):
                        bulk = model(many_rows)
                    with parts.control.torch(after=start):
                        for _ in range(16):
                            answer = graphs.replay("control", batch)
                right &= torch.allclose(answer, expected_rows, rtol=0.05, atol=0.05)
                right &= torch.allclose(bulk, whole, rtol=0.05, atol=0.05)
        print(f"the graphs and the bulk work are right: {right}")


if __name__ == "__main__":
    main()
