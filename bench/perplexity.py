"""How well an engine reads a text: tokenmill beside the dequantised fp32 model and llama.cpp.

    python bench/perplexity.py demo gemma3-270m --llama-cpp .venv-peers/bin/python

The results of each model are kept in bench/results/perplexity.json; bench/report.py puts them into
docs/performance.md. The text is cut into windows that each stand alone. Every engine gets the same
token ids, and the perplexity is exp of the mean negative log-probability of each token but the first of
its window.
Needs what tests need: ``pip install tokenmill[test]``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
import transformers

from tokenmill import LLM, SamplingParams, __version__
from tokenmill.errors import TokenmillError
from tokenmill.tokenizer import load_tokenizer
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.ggml_formats import dequantize
from tokenmill.weights.sources import resolve

HERE = Path(__file__).parent
TEXT = HERE.parent / "LICENSE"
WINDOW = 512

Windows = Sequence[Sequence[int]]


Losses = list[float]
"""Negative log-probabilities of every token but the first of its window, in order."""


def perplexity(losses: Losses) -> float:
    """exp of the mean."""
    return math.exp(statistics.fmean(losses))


@dataclass(frozen=True)
class Distance:
    """How far a perplexity lies from another over the same tokens: the logarithm of their ratio.

    error: its standard error. Rounding moves the losses of single tokens up and down, so over a text of
    a few thousand tokens a distance within about two of these says nothing.
    """

    log_ratio: float
    error: float

    @classmethod
    def of(cls, losses: Losses, others: Losses) -> Distance:
        """From the differences token by token."""
        differences = [a - b for a, b in zip(losses, others, strict=True)]
        error = statistics.stdev(differences) / math.sqrt(len(differences))
        return cls(statistics.fmean(differences), error)


def windows_of(model: Path) -> list[list[int]]:
    """The text as the model's token ids, cut into windows of at most ``WINDOW`` tokens.

    Each starts as the tokenizer starts a text: models that were trained with a first token that marks
    the beginning read badly, and erratically, without it.
    """
    tokenizer = load_tokenizer(open_checkpoint(model))
    start = tokenizer.encode("")
    ids = tokenizer.encode(TEXT.read_text("utf-8"), add_special_tokens=False)
    length = WINDOW - len(start)
    return [[*start, *ids[i : i + length]] for i in range(0, len(ids) - 1, length)]


def of_tokenmill(model: Path, windows: Windows) -> Losses:
    """As tokenmill reads them, all windows at once."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    losses: Losses = []
    with LLM(str(model), max_model_len=2 * WINDOW) as llm:
        for output in llm.generate(list(windows), params, use_tqdm=False):
            scores = output.prompt_logprobs
            assert scores is not None
            for token, entry in list(zip(output.prompt_token_ids, scores, strict=True))[1:]:
                assert entry is not None
                losses.append(-entry[token].logprob)
    return losses


def of_fp32(model: Path, windows: Windows) -> Losses:
    """Of the dequantised weights in fp32, computed by transformers."""
    reference = fp32_model(model)
    losses: Losses = []
    with torch.inference_mode():
        for window in windows:
            ids = torch.tensor([window])
            logits = reference(ids).logits[0, :-1].log_softmax(-1)
            losses += (-logits.gather(1, ids[0, 1:, None]).squeeze(1)).tolist()
    return losses


def fp32_model(path: Path) -> torch.nn.Module:
    """The dequantised model in transformers. One tensor at a time, so that memory holds it once."""
    checkpoint = open_checkpoint(path)
    settings = {k: v for k, v in checkpoint.config.items() if k not in ("architectures", "torch_dtype")}
    config = transformers.AutoConfig.for_model(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.tie_weights()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    left_out = set(parameters) - set(checkpoint.names())
    if left_out - {"lm_head.weight"} or not left_out <= set(parameters):
        raise SystemExit(f"the file lacks {', '.join(sorted(left_out))}")
    with torch.no_grad():
        for name in checkpoint.names():
            weight = dequantize(checkpoint.get(name))
            if checkpoint.norm_offset_applied and name.endswith("norm.weight"):
                weight = weight - 1  # transformers adds the 1 of 1 + w itself
            parameters[name].copy_(weight)
    result: torch.nn.Module = model.eval()
    return result


def of_llama_cpp(python: Path, model: Path, windows: Windows) -> Losses:
    """Computed by llama-cpp-python in an environment of its own."""
    done = subprocess.run(
        [str(python), str(HERE / "peer_llama_cpp_perplexity.py"), str(model)],
        input=json.dumps(windows),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["without a word"])[-1]
        raise SystemExit(f"llama.cpp's perplexity failed: {last}")
    losses: Losses = json.loads(done.stdout)
    return losses


def measure(model: Path, llama_cpp: Path | None) -> dict[str, float | int | str]:
    """All that can be measured on a GGUF file."""
    windows = windows_of(model)
    found: dict[str, float | int | str] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "text": TEXT.name,
        "window": WINDOW,
        "tokens": sum(len(ids) - 1 for ids in windows),
    }
    reference = of_fp32(model, windows)
    found["fp32"] = perplexity(reference)
    engines = {"tokenmill": of_tokenmill(model, windows)}
    if llama_cpp is not None:
        engines["llama-cpp-python"] = of_llama_cpp(llama_cpp, model, windows)
    for engine, losses in engines.items():
        found[engine] = perplexity(losses)
        found[f"{engine} error"] = Distance.of(losses, reference).error
    return found


def record(name: str, found: dict[str, float | int | str], target: Path) -> None:
    """Put a model's results in the place of its older ones."""
    results = json.loads(target.read_text("utf-8")) if target.exists() else {}
    results[name] = found
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n", "utf-8")


def main() -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description="Compare perplexities.")
    parser.add_argument("models", nargs="+", help="what tokenmill calls GGUF models")
    parser.add_argument("--llama-cpp", type=Path, help="python of an environment with llama-cpp-python")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "perplexity.json")
    args = parser.parse_args()
    try:
        for model in args.models:
            found = measure(resolve(model), args.llama_cpp)
            print(model, json.dumps(found), flush=True)
            record(Path(model).stem if Path(model).exists() else model, found, args.output)
    except TokenmillError as error:
        print(f"perplexity.py: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
