"""Measures transformers the way ``tokenmill bench`` measures tokenmill, and prints the same JSON.

    python bench/peer_transformers.py DIRECTORY --threads 2

Weights stay in the checkpoint's own type. All texts have one length, so a batch needs no padding; each
prompt is read by itself, and the caches are then joined for the steps that follow.
"""

from __future__ import annotations

import inspect

import peer
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache


class Transformers(peer.StepPeer):
    """A model in eager mode, which is what ``generate`` runs by default."""

    def __init__(self, task: peer.Task) -> None:
        torch.set_num_threads(task.threads)
        transformers.logging.set_verbosity_error()
        self._model = AutoModelForCausalLM.from_pretrained(task.model, dtype="auto").eval()
        self.vocab_size: int = self._model.config.vocab_size
        # The argument was renamed within transformers 5.
        named = "cache" in inspect.signature(self._model.forward).parameters
        self._cache_name = "cache" if named else "past_key_values"
        self._caches: list[DynamicCache] = []
        self._joined: DynamicCache | None = None

    def clear(self) -> None:
        """Forget all texts."""
        self._caches, self._joined = [], None

    @torch.inference_mode()
    def prefill(self, seq: int, prompt: list[int]) -> int:
        """Read a prompt; the likeliest next token."""
        cache = DynamicCache()
        out = self._model(torch.tensor([prompt]), logits_to_keep=1, **{self._cache_name: cache})
        self._caches.append(cache)
        return int(out.logits[0, -1].argmax())

    @torch.inference_mode()
    def step(self, position: int, tokens: list[int]) -> list[int]:
        """One token of each text; the likeliest next tokens."""
        if self._joined is None:
            self._joined = self._join()
        out = self._model(torch.tensor(tokens).unsqueeze(1), **{self._cache_name: self._joined})
        likeliest: list[int] = out.logits[:, -1].argmax(dim=1).tolist()
        return likeliest

    def _join(self) -> DynamicCache:
        """The texts' caches as one batch."""
        joined = DynamicCache()
        for layer, parts in enumerate(zip(*(cache.layers for cache in self._caches), strict=True)):
            keys = torch.cat([part.keys for part in parts])
            values = torch.cat([part.values for part in parts])
            joined.update(keys, values, layer)
        self._caches = []
        return joined


if __name__ == "__main__":
    peer.main(
        "transformers",
        transformers.__version__,
        peer.read_task("Measure transformers on a checkpoint's directory."),
        Transformers,
    )
