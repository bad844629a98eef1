"""GEMMs without an end, written without this package. Prints their rate, and whether the results are right, as JSON."""

from __future__ import annotations

import json
import sys
import time

import torch

SIZE, AT_ONCE = 8192, 4


def main(seconds: float) -> None:
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = torch.full_like(a, float("nan"))
    vector = torch.randn(SIZE, 1, device="cuda", dtype=torch.float64)
    expected = a.double() @ (b.double() @ vector)
    torch.cuda.synchronize()
    begin, count, window = time.perf_counter(), 0, [time.time()]
    while time.perf_counter() - begin < seconds:
        for _ in range(AT_ONCE):
            torch.matmul(a, b, out=product)
        torch.cuda.synchronize()
        count += AT_ONCE
    rate = count / (time.perf_counter() - begin)
    window.append(time.time())
    found = product.double() @ vector
    is_right = bool(((found - expected).abs() / expected.abs().mean() < 0.2).all())  # NaN is not
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    print(json.dumps({"sms": sms, "per_second": round(rate, 1), "window": window, "is_right": is_right}))


if __name__ == "__main__":
    main(float(sys.argv[1]))
