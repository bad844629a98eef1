"""The training of a transformer, written without this package. Prints its rate as JSON."""

from __future__ import annotations

import json
import sys
import time

import torch


def main(seconds: float) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 8).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = torch.randn(16, 1024, 2048, device="cuda", dtype=torch.bfloat16)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(2):
        step()
    torch.cuda.synchronize()
    begin, steps, window = time.perf_counter(), 0, [time.time()]
    while time.perf_counter() - begin < seconds:
        loss = step()
        torch.cuda.synchronize()
        steps += 1
    rate = steps / (time.perf_counter() - begin)
    window.append(time.time())
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    print(json.dumps({"sms": sms, "per_second": round(rate, 3), "loss": round(float(loss), 5), "window": window}))


if __name__ == "__main__":
    main(float(sys.argv[1]))
