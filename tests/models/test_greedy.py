"""Real GGUF models continue prompts as llama.cpp does on the same file.

Both engines quantise activations to int8, llama.cpp in groups of 32 or 256 (by weight format),
tokenmill in groups of 32, so logits differ a little and near ties may turn. At the first difference
llama.cpp's own margin over the runner-up must have been small.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenmill import LLM, SamplingParams
from tokenmill.weights.sources import resolve

GOLDEN = Path(__file__).parents[1] / "golden"
CLOSE_CALL = 0.4
"""Logits: the largest margin at which the engines may disagree."""


@pytest.mark.model
@pytest.mark.parametrize("name", ["demo", "gemma3-270m", "qwen2.5-coder-0.5b"])
def test_greedy_tokens_equal_llama_cpp_up_to_near_ties(name: str) -> None:
    cases = json.loads((GOLDEN / f"greedy_{name}.json").read_text("utf-8"))["cases"]
    assert len(cases) >= 10
    length = len(cases[0]["token_ids"])
    params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
    with LLM(str(resolve(name)), max_model_len=512) as llm:
        outputs = llm.generate([case["prompt_token_ids"] for case in cases], params, use_tqdm=False)
    agreed = 0
    for case, output in zip(cases, outputs, strict=True):
        ours, theirs = output.outputs[0].token_ids, case["token_ids"]
        same = next((i for i in range(length) if ours[i] != theirs[i]), length)
        agreed += same
        if same < length:
            assert case["margins"][same] < CLOSE_CALL, (case["prompt"], same)
    assert agreed >= 0.5 * length * len(cases)
