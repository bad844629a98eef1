"""A Llama with random weights decodes in a partition, while another thread prefills in another one.

    python llama_program.py [--static] [--device cpu]

Prints a line for each way of decoding: generate(); with --static a step in a static cache, also in a CUDA graph and
compiled.
The tokens are compared with those of the same way on the whole device, and the prefills with one on the whole device.
On a CPU there are no partitions, and the program checks only that its ways of decoding agree. Needs transformers.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

PROMPT = 48
NEW = 24
LONGEST = 128
PREFILL = 384


def random_llama(device: str) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).to(device).eval()


class Decoder:
    """Decodes greedily in a static cache: a step has the same shapes and addresses each time."""

    def __init__(self, model: Any, prompt: Any) -> None:
        self._model, self._prompt, self._forward = model, prompt, model.forward
        self._cache = StaticCache(config=model.config, max_cache_len=LONGEST)
        device = prompt.device
        self._places = torch.arange(LONGEST, device=device)
        self._at = torch.zeros(1, dtype=torch.long, device=device)
        self._token = torch.zeros(1, 1, dtype=torch.long, device=device)
        self._out = torch.zeros(LONGEST, dtype=torch.long, device=device)

    def compile(self) -> None:
        self._forward = torch.compile(self._model.forward, dynamic=False)

    def _run(self, forward: Any, ids: Any, at: Any) -> None:
        # The mask is made here, because transformers would make it from host memory.
        allowed = self._places[None, :] <= at[:, None]
        mask = torch.zeros(allowed.shape, device=allowed.device).masked_fill(~allowed, torch.finfo(torch.float32).min)
        answer = forward(
            input_ids=ids,
            attention_mask=mask[None, None],
            position_ids=at[None],
            cache_position=at,
            past_key_values=self._cache,
            use_cache=True,
        )
        self._token.copy_(answer.logits[:, -1:].argmax(-1))

    def start(self) -> None:
        """Fill the cache with the prompt."""
        # From version 5 of transformers on, a cache counts its tokens itself and goes on behind them.
        self._cache.reset()
        self._run(self._model.forward, self._prompt, self._places[:PROMPT])
        self._at.fill_(PROMPT)
        self._out[0] = self._token[0, 0]

    def step(self) -> None:
        """Decode one token. All that changes is on the device."""
        self._run(self._forward, self._token, self._at)
        self._at.add_(1)
        self._out.index_copy_(0, self._at - PROMPT, self._token.view(1))

    def tokens(self, step: Callable[[], object]) -> list[int]:
        self.start()
        for _ in range(NEW - 1):
            step()
        found: list[int] = self._out[:NEW].tolist()
        return found


def generated(model: Any, prompt: Any) -> list[int]:
    answer = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, do_sample=False)
    found: list[int] = answer[0, PROMPT:].tolist()
    return found


class Prefills:
    """Prefills on another thread, until the block ends. Each is compared with that of the whole device."""

    def __init__(self, model: Any, ids: Any) -> None:
        self._model, self._ids = model, ids
        self.expected = self._logits()
        self.count = self.wrong = 0

    def _logits(self) -> Any:
        return self._model(self._ids, use_cache=False).logits[:, -1]

    @contextmanager
    def running(self, block: AbstractContextManager[Any]) -> Iterator[None]:
        stop, begun = threading.Event(), threading.Event()
        errors: list[BaseException] = []

        def work() -> None:
            try:
                with torch.inference_mode():
                    while not stop.is_set():
                        with block:
                            logits = self._logits()
                            self.wrong += not torch.equal(logits, self.expected)
                        self.count += 1
                        begun.set()
            except BaseException as error:  # raised again where the program sees it
                errors.append(error)
                begun.set()

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait(60)
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if errors:
            raise errors[0]


def report(way: str, tokens: list[int], expected: list[int], prefills: Prefills | None = None) -> None:
    others = "" if prefills is None else f", {prefills.wrong} of {prefills.count} prefills differ"
    same = sum(one == other for one, other in zip(tokens, expected, strict=True))
    print(f"{way}: {same} of {len(expected)} tokens are equal{others}", flush=True)
    assert tokens == expected, (way, tokens, expected)
    assert prefills is None or (prefills.count > 0 and prefills.wrong == 0), way


def on_cpu() -> None:
    model = random_llama("cpu")
    prompt = torch.randint(0, 2048, (1, PROMPT))
    decoder = Decoder(model, prompt)
    expected = generated(model, prompt)
    for _ in range(2):  # the cache starts from the beginning again
        report("step", decoder.tokens(decoder.step), expected)
    prefills = Prefills(model, torch.randint(0, 2048, (1, PREFILL)))
    with prefills.running(nullcontext()):
        tokens = generated(model, prompt)
    report("generate", tokens, expected, prefills)


def on_gpu(static: bool) -> None:
    from cuda_gctx import Device, GraphSet
    from cuda_gctx.interop.torch import fork

    model = random_llama("cuda")
    prompt = torch.randint(0, 2048, (1, PROMPT), device="cuda")
    prefills = Prefills(model, torch.randint(0, 2048, (4, PREFILL), device="cuda"))
    by_generate = generated(model, prompt)
    with Device(0).partition(decode=32, prefill=None) as parts, GraphSet(framework="torch") as graphs:

        def next_to_prefills(way: str, decode: Callable[[], list[int]], expected: list[int]) -> None:
            prefills.count = 0
            with (
                fork() as start,
                prefills.running(parts.prefill.torch(after=start)),
                parts.decode.torch(after=start),
            ):
                tokens = decode()
            report(way, tokens, expected, prefills)

        next_to_prefills("generate", lambda: generated(model, prompt), by_generate)
        if not static:
            torch.cuda.synchronize()
            return
        decoder = Decoder(model, prompt)
        by_step = decoder.tokens(decoder.step)  # on the whole device
        next_to_prefills("step", lambda: decoder.tokens(decoder.step), by_step)
        with parts.decode.torch():
            decoder.start()
        graphs.capture(parts.decode, "step", lambda part: decoder.step())
        replay = lambda: graphs.replay(parts.decode, "step")  # noqa: E731
        next_to_prefills("CUDA graph", lambda: decoder.tokens(replay), by_step)
        decoder.compile()
        by_compiled = decoder.tokens(decoder.step)  # on the whole device, where it is compiled
        next_to_prefills("compiled", lambda: decoder.tokens(decoder.step), by_compiled)
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    with torch.inference_mode():
        if asked.device == "cpu":
            on_cpu()
        else:
            on_gpu(asked.static)
    print("as it should be")


if __name__ == "__main__":
    main()
