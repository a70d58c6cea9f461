"""Measures llama-cpp-python the way ``tokenmill bench`` measures tokenmill, and prints the same JSON.

Runs in an environment of its own (``make bench-peers``) and imports nothing of tokenmill. It uses the
low-level batch interface, where several sequences share one decode call, since the high-level class
serves one sequence at a time.

    python bench/peer_llama_cpp.py MODEL.gguf --threads 2
"""

from __future__ import annotations

from typing import Any

import llama_cpp
import numpy as np
import peer

BATCH = 512
"""Tokens of a call at most: tokenmill's default as well."""


@llama_cpp.llama_log_callback
def _SILENCE(level: int, text: bytes, user_data: Any) -> None:
    """llama.cpp writes pages of notes to stderr."""


class LlamaCpp(peer.StepPeer):
    """A model with a context for the task's texts."""

    def __init__(self, task: peer.Task) -> None:
        llama_cpp.llama_log_set(_SILENCE, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(task.model.encode(), params)
        if not self._model:
            raise SystemExit(f"llama.cpp can't load {task.model}")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = task.max_seqs * (-(-task.max_len // 256) * 256)
        context.n_batch = context.n_ubatch = BATCH
        context.n_seq_max = task.max_seqs
        context.n_threads = context.n_threads_batch = task.threads
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        if not self._context:
            raise SystemExit("llama.cpp can't make a context of this size")
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self.vocab_size: int = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def clear(self) -> None:
        """Forget all texts."""
        llama_cpp.llama_memory_clear(self._memory, True)

    def prefill(self, seq: int, prompt: list[int]) -> int:
        """Read a prompt; the likeliest next token."""
        for start in range(0, len(prompt), BATCH):
            part = prompt[start : start + BATCH]
            rows = [(token, start + offset, seq) for offset, token in enumerate(part)]
            last = start + len(part) == len(prompt)
            self._decode(rows, wants=[last and offset == len(part) - 1 for offset in range(len(part))])
        return self._likeliest(-1)

    def step(self, position: int, tokens: list[int]) -> list[int]:
        """One token of each text; the likeliest next tokens."""
        rows = [(token, position, seq) for seq, token in enumerate(tokens)]
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


if __name__ == "__main__":
    peer.main(
        "llama-cpp-python",
        llama_cpp.__version__,
        peer.read_task("Measure llama-cpp-python on a .gguf file."),
        LlamaCpp,
    )
