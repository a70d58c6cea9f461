"""Real GGUF models continue prompts as llama.cpp does on the same file.

Both engines quantise activations to int8, llama.cpp in groups of 32 or 256 (by weight format),
tokenmill in groups of 32, so logits differ a little and near ties may turn. Where the engines differ,
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
"""Logits: the largest margin at which continuations may part."""

CLOSEST_CALL = 0.6
"""The same where all choices of a text are compared, not only those up to the first difference."""


@pytest.mark.model
@pytest.mark.parametrize("name", ["demo", "gemma3-270m", "qwen2.5-coder-0.5b"])
def test_greedy_tokens_equal_llama_cpp_up_to_near_ties(name: str) -> None:
    cases = json.loads((GOLDEN / f"greedy_{name}.json").read_text("utf-8"))["cases"]
    assert len(cases) >= 10
    length = len(cases[0]["token_ids"])
    with LLM(str(resolve(name)), max_model_len=512) as llm:
        prompts = [case["prompt_token_ids"] for case in cases]
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
        texts = [case["prompt_token_ids"] + case["token_ids"] for case in cases]
        followed = llm.generate(texts, params, use_tqdm=False)
    agreed = 0
    for case, output, follow in zip(cases, outputs, followed, strict=True):
        ours, theirs, margins = output.outputs[0].token_ids, case["token_ids"], case["margins"]
        same = next((i for i in range(length) if ours[i] != theirs[i]), length)
        assert same == length or margins[same] < CLOSE_CALL, (case["prompt"], same)
        # Behind a near tie the texts differ, so every later choice is compared in llama.cpp's own text.
        assert follow.prompt_logprobs is not None
        for i, logprobs in enumerate(follow.prompt_logprobs[-length:]):
            assert logprobs is not None
            first = logprobs[theirs[i]].rank == 1
            assert first or margins[i] < CLOSEST_CALL, (case["prompt"], i)
            agreed += first
    assert agreed >= 0.95 * length * len(cases)
