"""A short kernel every half millisecond, written without this package. Prints latencies as JSON."""

from __future__ import annotations

import json
import sys
import time

import torch


def main(wait_s: float, seconds: float) -> None:
    given = torch.randn(256, 4096, device="cuda", dtype=torch.bfloat16)
    answer = torch.empty_like(given)
    stream = torch.cuda.Stream(priority=-5)
    with torch.cuda.stream(stream):
        torch.sigmoid(given, out=answer)
        torch.cuda.synchronize()
        expected = answer.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            torch.sigmoid(given, out=answer)
        done = torch.cuda.Event()
        latencies: list[float] = []
        time.sleep(wait_s)
        end, window = time.perf_counter() + seconds, [time.time()]
        while (begin := time.perf_counter()) < end:
            graph.replay()
            done.record(stream)
            while not done.query():
                pass
            latencies.append(time.perf_counter() - begin)
            time.sleep(0.0005)
        window.append(time.time())
        torch.cuda.synchronize()
        is_right = bool(torch.equal(answer, expected))
    latencies.sort()
    us = {f"p{100 * share:g}": round(latencies[int(share * len(latencies))] * 1e6, 1) for share in (0.5, 0.99, 0.999)}
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    print(json.dumps({"sms": sms, "calls": len(latencies), "us": us, "window": window, "is_right": is_right}))


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
