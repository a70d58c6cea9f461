"""Writes a GGUF model as a directory of bf16 safetensors, so that engines without GGUF can be compared.

    python bench/make_bf16.py qwen2.5-coder-0.5b OUTPUT_DIR

Weights are dequantised by tokenmill and rounded to bf16; every engine then reads the same directory.
The tokenizer's files are written by transformers from the same GGUF file. Needs what tests need:
``pip install tokenmill[test]``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from tokenmill.errors import TokenmillError
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.ggml_formats import dequantize
from tokenmill.weights.sources import resolve


def tensors(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """All weights in bf16, as Hugging Face checkpoints of this family hold them."""
    found = {}
    for name in checkpoint.names():
        weight = dequantize(checkpoint.get(name))
        if checkpoint.norm_offset_applied and name.endswith("norm.weight"):
            weight = weight - 1  # such checkpoints keep w where the norm multiplies by 1 + w
        found[name] = weight.to(torch.bfloat16).contiguous()
    return found


def write(source: Path, target: Path) -> None:
    """The whole directory; config.json comes last, and says that everything is there."""
    checkpoint = open_checkpoint(source)
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors(checkpoint), target / "model.safetensors", {"format": "pt"})
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(target)
    texts = {
        "generation_config.json": checkpoint.generation_config,
        "config.json": {**checkpoint.config, "torch_dtype": "bfloat16"},
    }
    for name, values in texts.items():
        (target / name).write_text(json.dumps(values, indent=1) + "\n", "utf-8")


def main() -> int:
    """Write the directory, unless it is there."""
    parser = argparse.ArgumentParser(description="Write a GGUF model as bf16 safetensors.")
    parser.add_argument("model", help="what tokenmill calls a GGUF model")
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    if (args.output / "config.json").exists():
        return 0
    try:
        write(resolve(args.model), args.output)
    except TokenmillError as error:
        print(f"make_bf16.py: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
