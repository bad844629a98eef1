"""A control loop, written without this package: a CUDA graph of 20 small kernels at 500 Hz. Prints JSON."""

from __future__ import annotations

import json
import sys
import time

import torch

RATE_HZ, DEADLINE_S = 500, 1e-3


def main(wait_s: float, seconds: float) -> None:
    weights = [torch.randn(256, 256, device="cuda") / 16 for _ in range(10)]
    given = torch.randn(32, 256, device="cuda")
    answer = torch.empty_like(given)
    stream = torch.cuda.Stream(priority=-5)

    def network() -> None:
        hidden = given
        for weight in weights:
            hidden = torch.tanh(hidden @ weight)
        answer.copy_(hidden)

    with torch.cuda.stream(stream):
        for _ in range(3):
            network()
        torch.cuda.synchronize()
        expected = answer.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            network()
        done = torch.cuda.Event()
        latencies: list[float] = []
        time.sleep(wait_s)
        begin, window = time.perf_counter(), [time.time()]
        for step in range(int(RATE_HZ * seconds)):
            due = begin + step / RATE_HZ
            while time.perf_counter() < due:
                pass
            graph.replay()
            done.record(stream)
            while not done.query():
                pass
            latencies.append(time.perf_counter() - due)
        window.append(time.time())
        torch.cuda.synchronize()
        is_right = bool(torch.allclose(answer, expected, atol=1e-4))
    latencies.sort()
    us = {f"p{100 * share:g}": round(latencies[int(share * len(latencies))] * 1e6, 1) for share in (0.5, 0.99, 0.999)}
    print(
        json.dumps(
            {
                "sms": torch.cuda.get_device_properties(0).multi_processor_count,
                "steps": len(latencies),
                "us": {**us, "max": round(latencies[-1] * 1e6, 1)},
                "window": window,
                "missed": sum(latency > DEADLINE_S for latency in latencies),
                "is_right": is_right,
            }
        )
    )


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
