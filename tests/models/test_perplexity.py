"""Real GGUF models read a real text as well as their dequantised fp32 selves do in transformers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import transformers

from tokenmill import LLM, SamplingParams
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.ggml_formats import dequantize
from tokenmill.weights.sources import resolve

TEXT = (Path(__file__).parents[2] / "LICENSE").read_text("utf-8")
WINDOW = 512


def windows(ids: list[int]) -> list[list[int]]:
    """The text in pieces that each stand alone."""
    return [ids[i : i + WINDOW] for i in range(0, len(ids) - 1, WINDOW)]


def oracle(path: Path) -> torch.nn.Module:
    """The dequantised model in transformers, fp32."""
    checkpoint = open_checkpoint(path)
    settings = {k: v for k, v in checkpoint.config.items() if k not in ("architectures", "torch_dtype")}
    config = transformers.AutoConfig.for_model(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    state = {name: dequantize(checkpoint.get(name)) for name in checkpoint.names()}
    if checkpoint.norm_offset_applied:  # transformers adds the 1 of 1 + w itself
        state = {k: v - 1 if k.endswith("norm.weight") else v for k, v in state.items()}
    left_out, unknown = model.load_state_dict(state, strict=False)
    assert not unknown
    assert set(left_out) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


@pytest.mark.model
@pytest.mark.parametrize("name", ["demo", "gemma3-270m", "qwen2.5-coder-0.5b"])
def test_perplexity_is_within_one_percent(name: str) -> None:
    path = resolve(name)
    with LLM(str(path), max_model_len=2 * WINDOW) as llm:
        pieces = windows(llm.get_tokenizer().encode(TEXT))
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        ours = 0.0
        for output in llm.generate(pieces, params, use_tqdm=False):
            scores = output.prompt_logprobs
            assert scores is not None
            for token, entry in list(zip(output.prompt_token_ids, scores, strict=True))[1:]:
                assert entry is not None
                ours -= entry[token].logprob
    model = oracle(path)
    theirs, count = 0.0, 0
    with torch.no_grad():
        for piece in pieces:
            ids = torch.tensor([piece])
            logits = model(ids).logits[0, :-1].log_softmax(-1)
            theirs -= logits.gather(1, ids[0, 1:, None]).sum().item()
            count += len(piece) - 1
    assert count > 2000
    assert math.exp(ours / count) == pytest.approx(math.exp(theirs / count), rel=0.01)
