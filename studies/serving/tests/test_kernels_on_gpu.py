"""The attention in Triton, against plain torch in float32. Needs a GPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed here")

import reference  # noqa: E402
from serving import kernels  # noqa: E402
from serving.model import MOST_SPLITS  # noqa: E402
from serving.shapes import SHAPES  # noqa: E402

# What rounding to bfloat16 explains.
TOLERANCE = 2e-2
SHAPE = SHAPES["8B"]
TOKENS = 128 // SHAPE.group  # of a block of a prompt
# Blocks of queries: slot, first row, rows, position of the first row. The last one of each has nothing to do.
DECODES = [[slot, slot, 1, length - 1] for slot, length in enumerate((1, 63, 64, 1000, 4000))]
PROMPTS = [
    [slot, first + at, min(TOKENS, count - at), start + at]
    for slot, first, start, count in ((0, 0, 0, 100), (1, 100, 1, 200), (2, 300, 3000, 37))
    for at in range(0, count, TOKENS)
]


@pytest.mark.parametrize("splits", [1, 2, 8])
@pytest.mark.parametrize(("blocks", "tokens", "rows"), [(DECODES, 1, 5), (PROMPTS, TOKENS, 337)])
def test_attention_is_that_of_torch(blocks: list[list[int]], tokens: int, rows: int, splits: int) -> None:
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    keys, values = (torch.randn(5, SHAPE.kv_heads, 4096, SHAPE.head_size, **options) for _ in range(2))
    queries = torch.randn(rows, SHAPE.heads, SHAPE.head_size, **options)
    slots = torch.zeros(rows, dtype=torch.int32, device="cuda")
    for slot, first, count, _ in blocks:
        slots[first : first + count] = slot
    table = torch.tensor([*blocks, [0, 0, 0, 0]], dtype=torch.int32, device="cuda")
    wanted = torch.empty(rows, SHAPE.heads, SHAPE.head_size, device="cuda")
    reference.attend(queries.float(), keys.float(), values.float(), slots, table, wanted, tokens, 1, None, None)

    out = torch.full_like(queries, float("nan"))
    numbers = MOST_SPLITS * rows * SHAPE.heads
    parts, marks = torch.zeros(numbers * SHAPE.head_size, device="cuda"), torch.zeros(numbers * 2, device="cuda")
    kernels.attend(queries, keys, values, slots, table, out, tokens, splits, parts, marks)
    error = (out.float() - wanted).norm() / wanted.norm()
    assert error.item() <= TOLERANCE
