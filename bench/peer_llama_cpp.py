"""Measures llama-cpp-python the way ``tokenmill bench`` measures tokenmill, and prints the same JSON.

Runs in an environment of its own (``make bench-peers``) and imports nothing of tokenmill. It uses the
low-level batch interface, where several sequences share one decode call, since the high-level class
serves one sequence at a time.

    python bench/peer_llama_cpp.py MODEL.gguf --threads 2
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np


class Peer:
    """A model with a context for up to ``max_seqs`` texts of ``max_len`` tokens."""

    def __init__(self, path: str, *, threads: int, max_seqs: int, max_len: int, batch: int) -> None:
        llama_cpp.llama_log_set(_SILENCE, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self._model:
            raise SystemExit(f"llama.cpp can't load {path}")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = max_seqs * (-(-max_len // 256) * 256)
        context.n_batch = context.n_ubatch = batch
        context.n_seq_max = max_seqs
        context.n_threads = context.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        if not self._context:
            raise SystemExit("llama.cpp can't make a context of this size")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self.vocab_size: int = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self._model)
        )
        self._batch_size = batch
        self._batch = llama_cpp.llama_batch_init(batch, 0, 1)

    def clear(self) -> None:
        """Forget all texts."""
        llama_cpp.llama_memory_clear(self._memory, True)

    def prefill(self, seq: int, prompt: list[int]) -> int:
        """Read a prompt; the likeliest next token."""
        for start in range(0, len(prompt), self._batch_size):
            part = prompt[start : start + self._batch_size]
            rows = [(token, start + offset, seq) for offset, token in enumerate(part)]
            last = start + len(part) == len(prompt)
            self._decode(rows, wants=[last and offset == len(part) - 1 for offset in range(len(part))])
        return self._likeliest(-1)

    def step(self, rows: list[tuple[int, int, int]]) -> list[int]:
        """One token of each text, given as (token, position, sequence); the likeliest next tokens."""
        self._decode(rows, wants=[True] * len(rows))
        return [self._likeliest(index) for index in range(len(rows))]

    def _decode(self, rows: list[tuple[int, int, int]], wants: list[bool]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, ((token, position, seq), want) in enumerate(zip(rows, wants, strict=True)):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = seq
            batch.logits[index] = want
        status = llama_cpp.llama_decode(self._context, batch)
        if status:
            raise SystemExit(f"llama_decode failed with status {status}")

    def _likeliest(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self.vocab_size,)).argmax())


@llama_cpp.llama_log_callback
def _SILENCE(level: int, text: bytes, user_data: Any) -> None:
    """llama.cpp writes pages of notes to stderr."""


class Prompts:
    """The same random tokens as tokenmill's benchmark takes."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._random = random.Random(1)

    def take(self, length: int) -> list[int]:
        """Token ids [length]."""
        return [self._random.randrange(self._vocab_size) for _ in range(length)]


def run_at_once(peer: Peer, prompts: list[list[int]], gen_tokens: int) -> dict[str, Any]:
    """Prompts one after another, then all texts together, one token a step."""
    peer.clear()
    sent = time.perf_counter()
    times: list[list[float]] = []
    tokens = []
    for seq, prompt in enumerate(prompts):
        tokens.append(peer.prefill(seq, prompt))
        times.append([time.perf_counter()])
    for position in range(len(prompts[0]), len(prompts[0]) + gen_tokens - 1):
        tokens = peer.step([(token, position, seq) for seq, token in enumerate(tokens)])
        now = time.perf_counter()
        for own in times:
            own.append(now)
    start, end = max(own[0] for own in times), times[0][-1]
    gaps = [b - a for own in times for a, b in pairwise(own)]
    total = len(prompts) * (len(prompts[0]) + gen_tokens)
    return {
        "concurrency": len(prompts),
        "decode_tok_s": len(prompts) * (gen_tokens - 1) / (end - start) if end > start else 0.0,
        "total_tok_s": total / (end - sent),
        "ttft_p50_s": statistics.median(own[0] - sent for own in times),
        "itl_p50_s": statistics.median(gaps) if gaps else 0.0,
    }


def prefill_seconds(peer: Peer, prompt: list[int]) -> float:
    """From a prompt to its first token."""
    peer.clear()
    started = time.perf_counter()
    peer.prefill(0, prompt)
    return time.perf_counter() - started


def peak_rss_bytes() -> int:
    """Most memory that this process had resident."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure llama-cpp-python.")
    parser.add_argument("model", help="a .gguf file")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--gen-tokens", type=int, default=64)
    parser.add_argument("--concurrency", default="1,4,16")
    args = parser.parse_args()
    concurrency = [int(part) for part in args.concurrency.split(",")]
    started = time.perf_counter()
    peer = Peer(
        args.model,
        threads=args.threads,
        max_seqs=max(concurrency),
        max_len=args.prompt_tokens + args.gen_tokens,
        batch=512,
    )
    load_s = time.perf_counter() - started
    prompts = Prompts(peer.vocab_size)
    first = prefill_seconds(peer, prompts.take(args.prompt_tokens))
    alone = statistics.median(prefill_seconds(peer, prompts.take(args.prompt_tokens)) for _ in range(3))
    runs = [
        run_at_once(peer, [prompts.take(args.prompt_tokens) for _ in range(count)], args.gen_tokens)
        for count in concurrency
    ]
    print(
        json.dumps(
            {
                "engine": "llama-cpp-python",
                "version": llama_cpp.__version__,
                "threads": args.threads,
                "load_s": load_s,
                "ttft_s": first,
                "prefill_tok_s": args.prompt_tokens / alone,
                "peak_rss_bytes": peak_rss_bytes(),
                "runs": runs,
            }
        )
    )


if __name__ == "__main__":
    main()
