"""Checks the results of libraries in this process, whatever SM count and whatever context it was given.

    python tests/hardware/library_results.py [products] [others]

Needs a GPU and torch. Prints one line of JSON for each part: the SM count that torch sees, and the results that are
wrong. Every output of a product is poisoned with NaN first, and every row is compared by a random vector.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as nn
from torch.nn.attention import SDPBackend, sdpa_kernel

SQUARES = (128, 256, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096)
ROWS, WIDTHS = (1, 8, 16, 32, 64, 96, 128, 200, 256, 512), (4096, 6144, 14336)
OTHER_SHAPES = ((2048, 512, 2048), (1000, 1000, 1000), (8192, 1024, 1024), (1024, 8192, 1024), (1024, 1024, 8192))
SHAPES = [
    *((size, size, size) for size in SQUARES),
    *((rows, 4096, width) for rows in ROWS for width in WIDTHS),
    *OTHER_SHAPES,
]
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}
# Batch, channels in, channels out, height and width, kernel.
CONVOLUTIONS = (
    (8, 64, 64, 56, 3),
    (8, 128, 256, 28, 3),
    (4, 256, 512, 14, 3),
    (8, 256, 64, 56, 1),
    (2, 3, 64, 112, 7),
    (16, 512, 512, 7, 3),
)
ATTENTIONS = ((2, 8, 1024, 64), (1, 16, 4096, 128), (8, 16, 512, 128))  # batch, heads, length, width
BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
Result = tuple[str, bool]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def is_close(found: torch.Tensor, expected: torch.Tensor, limit: float) -> bool:
    difference = (found.double() - expected.double()).norm() / expected.double().norm()
    return bool(difference < limit)  # NaN is not


def wrong_rows(a: torch.Tensor, b: torch.Tensor, product: torch.Tensor) -> int:
    """Counts rows of the product that differ from a @ b, compared by what they give with a random vector."""
    vector = random(product.shape[1], dtype=torch.float64)
    found = (product.double() * vector).sum(1)
    expected = (a.double() * (b.double() * vector).sum(1)).sum(1)
    return int((~((found - expected).abs() / expected.abs().mean() < 0.2)).sum())


def products() -> Iterator[Result]:
    for name, dtype in TYPES.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        for m, k, n in SHAPES:
            for transposed in (False, True):
                a = random(m, k, dtype=dtype)
                b = random(n, k, dtype=dtype).t() if transposed else random(k, n, dtype=dtype)
                out = torch.full((m, n), float("nan"), device="cuda", dtype=dtype)
                torch.mm(a, b, out=out)
                yield f"{name} {m} x {k} x {n}{' transposed' * transposed}", wrong_rows(a, b, out) == 0


def convolutions() -> Iterator[Result]:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for layout in (torch.contiguous_format, torch.channels_last):
            for batch, channels, outputs, size, kernel in CONVOLUTIONS:
                x = random(batch, channels, size, size, dtype=dtype).contiguous(memory_format=layout)
                w = random(outputs, channels, kernel, kernel, dtype=dtype).contiguous(memory_format=layout)
                y = nn.conv2d(x, w, padding=kernel // 2).flatten(2)
                # A few output channels, as sums in double precision.
                some = torch.randint(0, outputs, (4,)).tolist()
                columns = nn.unfold(x.double(), kernel, padding=kernel // 2)
                expected = torch.stack([(columns * w[c].double().reshape(1, -1, 1)).sum(1) for c in some], 1)
                what = f"convolution {dtype} {channels} to {outputs}, {size}, kernel {kernel}, {layout}"
                yield what, is_close(y[:, some], expected, 0.02)


def attentions() -> Iterator[Result]:
    for backend in BACKENDS:
        for batch, heads, length, width in ATTENTIONS:
            q, k, v = (random(batch, heads, length, width, dtype=torch.bfloat16) for _ in range(3))
            with sdpa_kernel(backend):
                found = nn.scaled_dot_product_attention(q, k, v, is_causal=True)
            rows = torch.tensor([0, 1, length // 3, length // 2, length - 1], device="cuda")
            scores = (q[:, :, rows].double().unsqueeze(3) * k.double().unsqueeze(2)).sum(-1) / width**0.5
            later = torch.arange(length, device="cuda").view(1, 1, 1, length) > rows.view(1, 1, -1, 1)
            weights = scores.masked_fill(later, float("-inf")).softmax(-1)
            expected = (weights.unsqueeze(-1) * v.double().unsqueeze(2)).sum(3)
            yield f"attention {backend.name} {length}", is_close(found[:, :, rows], expected, 0.02)


def others() -> Iterator[Result]:
    yield from convolutions()
    yield from attentions()
    signal = random(64, 4096, dtype=torch.complex64)
    yield "FFT there and back", is_close(torch.fft.ifft(torch.fft.fft(signal)).real, signal.real, 1e-4)
    matrix = random(1024, 1024, dtype=torch.float64)
    q, r = torch.linalg.qr(matrix)
    yield "QR", is_close((q[:64].unsqueeze(2) * r[:, :64].unsqueeze(0)).sum(1), matrix[:64, :64], 1e-6)
    unit = torch.zeros(1024, 1, device="cuda", dtype=torch.float64)
    unit[0] = 1
    yield "solve", is_close(torch.linalg.solve(matrix, matrix[:, :1].clone()), unit, 1e-3)
    values = random(1 << 22)
    ordered = values.sort()[0]
    rises = bool((ordered[1:] >= ordered[:-1]).all())
    yield "sort", rises and is_close(ordered.double().sum(), values.double().sum(), 1e-9)
    yield "scan", is_close(values.double().cumsum(0)[-1], values.double().sum(), 1e-9)


PARTS = {"products": products, "others": others}


def main(names: list[str]) -> int:
    torch.manual_seed(0)
    any_wrong = False
    for name in names or PARTS:
        results = list(PARTS[name]())
        wrong = [what for what, is_right in results if not is_right]
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        answer: dict[str, Any] = {"part": name, "torch sees": sms, "results": len(results), "wrong": wrong}
        print(json.dumps(answer), flush=True)
        any_wrong |= bool(wrong)
    return any_wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
