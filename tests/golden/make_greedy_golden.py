"""Writes greedy_<model>.json: what llama.cpp answers greedily, for comparison.

Run with a Python that has llama-cpp-python (made with 0.3.36):

    python tests/golden/make_greedy_golden.py NAME MODEL.gguf

Prompts are given as token ids, so that only the engines differ. The margin of a token is how much its
logit lay above the runner-up's: where engines round activations differently, near ties may turn.
"""

import json
import sys
from pathlib import Path

import numpy as np
from llama_cpp import Llama

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "The three primary colours are",
    "import json\n\ndef load(path):\n",
    "To make a cup of tea, first",
    "In 1969, astronauts from the Apollo 11 mission",
    "SELECT name, age FROM users WHERE",
    "The quick brown fox jumps over",
    "Photosynthesis is the process by which",
    "1, 1, 2, 3, 5, 8,",
]
LENGTH = 32


def main() -> None:
    name, path = sys.argv[1:]
    llm = Llama(path, n_ctx=512, logits_all=True, verbose=False, n_threads=2)
    cases = []
    for prompt in PROMPTS:
        ids = llm.tokenize(prompt.encode(), add_bos=True, special=False)
        llm.reset()
        llm.eval(ids)
        tokens, margins = [], []
        for _ in range(LENGTH):
            logits = np.array(llm.scores[llm.n_tokens - 1])
            token = int(logits.argmax())
            top = np.partition(logits, -2)[-2:]
            tokens.append(token)
            margins.append(round(float(top[1] - top[0]), 4))
            llm.eval([token])
        cases.append(
            {"prompt": prompt, "prompt_token_ids": ids, "token_ids": tokens, "margins": margins}
        )
    target = Path(__file__).parent / f"greedy_{name}.json"
    target.write_text(
        json.dumps({"made_with": "llama-cpp-python 0.3.36", "cases": cases}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
