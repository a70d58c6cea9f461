"""A model is the same whichever kind of file it came from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.harness import OurModel, prompt_of
from tests.weights.gguf_factory import write_gguf
from tests.weights.test_checkpoint import FAMILIES, converted, metadata_for, tiny_model
from tokenmill.ops.table import OpTable
from tokenmill.weights.checkpoint import open_checkpoint


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_file_and_its_directory_give_the_same_bits(
    ops: OpTable, tmp_path: Path, family: str
) -> None:
    hf = tiny_model(family)
    hf.save_pretrained(tmp_path / "hf")
    file = write_gguf(tmp_path / "m.gguf", metadata_for(family), converted(hf, family))
    prompt = prompt_of(64, 40)
    from_directory, from_file = (
        OurModel(open_checkpoint(path), ops).logits(prompt) for path in (tmp_path / "hf", file)
    )
    assert from_file.isfinite().all()
    assert torch.equal(from_file, from_directory)
