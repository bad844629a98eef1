"""A Llama of transformers decodes in a partition next to prefills on another thread, with each allocator of torch.

Each run is a program of its own (see llama_program.py), under a time limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu_only

PROGRAM = Path(__file__).with_name("llama_program.py")
LIMIT_S = 100


def run(setting: str, *arguments: str) -> None:
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason=f"{module} is not installed here")
    settings = {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting} if setting else {}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        env={**os.environ, **settings, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[:3000]}\n...\n{done.stderr[-3000:]}"
    assert done.stdout.splitlines()[-1] == "as it should be"


SETTINGS = ["", "backend:cudaMallocAsync", "expandable_segments:True"]


@pytest.mark.parametrize("setting", SETTINGS)
def test_generate_gives_the_same_tokens_in_a_partition(setting: str) -> None:
    run(setting)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_static_cache_a_cuda_graph_and_compiled_code_give_the_same_tokens_in_a_partition(setting: str) -> None:
    run(setting, "--static")
