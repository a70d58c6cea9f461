"""Negative log-probabilities of given windows of token ids, from llama-cpp-python.

Reads a JSON list of windows from standard input; prints one number for every token but the first of its
window, in order.
"""

from __future__ import annotations

import json
import sys

import llama_cpp
import numpy as np


def main() -> None:
    """Every window alone, every token's logits."""
    windows = json.load(sys.stdin)
    size = max(map(len, windows))
    llm = llama_cpp.Llama(
        sys.argv[1], n_ctx=size, n_batch=size, n_ubatch=size, logits_all=True, verbose=False
    )
    losses = []
    for ids in windows:
        llm.reset()
        llm.eval(ids)
        for row, token in enumerate(ids[1:]):
            logits = llm.scores[row].astype(np.float64)
            top = logits.max()
            losses.append(float(top + np.log(np.exp(logits - top).sum()) - logits[token]))
    print(json.dumps(losses))


if __name__ == "__main__":
    main()
