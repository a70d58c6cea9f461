"""A model's files behind one interface, whatever format they are in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from tokenmill.errors import CheckpointError
from tokenmill.weights import gguf_map
from tokenmill.weights.gguf_file import GGUFFile
from tokenmill.weights.safetensors_file import SafetensorsFolder, read_json_file
from tokenmill.weights.tensor import RawTensor


class Checkpoint(Protocol):
    """Configuration and tensors of a model.

    path: the directory or file that was opened.
    config: config.json, or the same keys made from GGUF metadata.
    generation_config: generation_config.json, or {}; from GGUF, the tokens that begin and end a text.
    metadata: GGUF metadata; {} for safetensors.
    norm_offset_applied: True where the file stores Gemma norms as 1 + w already.
    """

    path: Path
    kind: Literal["safetensors", "gguf"]
    config: dict[str, Any]
    generation_config: dict[str, Any]
    metadata: dict[str, Any]
    norm_offset_applied: bool

    def names(self) -> Collection[str]:
        """Hugging Face names of the tensors, whatever the file calls them."""
        ...

    def get(self, name: str) -> RawTensor:
        """A tensor as it is stored: a view of the mapped file. Raises CheckpointError if absent."""
        ...

    def close(self) -> None:
        """Gives the mapping up; tensors that were handed out stay valid."""
        ...

    def drop_pages(self) -> None:
        """Lets the system take back the memory of what was read; views stay valid."""
        ...


class SafetensorsCheckpoint:
    """A Hugging Face directory: config.json beside safetensors files."""

    kind: Literal["safetensors", "gguf"] = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_json_file(path / "config.json")
        _refuse_quantized(path, self.config)
        generation = path / "generation_config.json"
        self.generation_config: dict[str, Any] = (
            read_json_file(generation) if generation.exists() else {}
        )
        self.metadata: dict[str, Any] = {}
        self.norm_offset_applied = False
        self._weights = SafetensorsFolder(path)

    def names(self) -> Collection[str]:
        """The tensors' names."""
        return self._weights.names()

    def get(self, name: str) -> RawTensor:
        """A view of one tensor. Raises CheckpointError if there is none of that name."""
        return self._weights.get(name)

    def close(self) -> None:
        """Gives the mappings up; tensors that were handed out stay valid."""
        self._weights.close()

    def drop_pages(self) -> None:
        """Lets the system take back the memory of what was read; views stay valid."""
        self._weights.drop_pages()


class GGUFCheckpoint:
    """A GGUF file, with the names and the row order of Hugging Face."""

    kind: Literal["safetensors", "gguf"] = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GGUFFile(path)
        try:
            meta = gguf_map.Metadata(self._file)
            family = gguf_map.family_of(meta)
            self.config = gguf_map.config_of(meta, family)
            self.generation_config = gguf_map.generation_config_of(meta)
            self._names = {
                gguf_map.hugging_face_name(family, name): name for name in self._file.tensors
            }
            if len(self._names) != len(self._file.tensors):
                raise CheckpointError(
                    f"{path} holds a tensor under two names; use another copy of the model"
                )
        except BaseException:
            self._file.close()
            raise
        self.metadata = self._file.metadata
        self.norm_offset_applied = family.norm_offset
        self._permuted = family.permuted

    def names(self) -> Collection[str]:
        """Hugging Face names of the tensors."""
        return self._names.keys()

    def get(self, name: str) -> RawTensor:
        """One tensor: a view, or a copy where rows had to be put back in order.

        Raises CheckpointError if there is none of that name.
        """
        stored = self._names.get(name)
        if stored is None:
            raise CheckpointError(f"{self.path} has no tensor {name}")
        raw = replace(self._file.get(stored), name=name)
        if self._permuted:
            if ".self_attn.q_proj." in name:
                return gguf_map.uninterleave_rows(raw, self.config["num_attention_heads"])
            if ".self_attn.k_proj." in name:
                return gguf_map.uninterleave_rows(raw, self.config["num_key_value_heads"])
        return raw

    def close(self) -> None:
        """Gives the mapping up; tensors that were handed out stay valid."""
        self._file.close()

    def drop_pages(self) -> None:
        """Lets the system take back the memory of what was read; views stay valid."""
        self._file.drop_pages()


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a .gguf file, or a directory with config.json and safetensors, or with exactly one .gguf.

    Maps the files and checks their headers; no weight is read. Raises CheckpointError.
    """
    path = Path(path)
    if path.is_dir():
        if (path / "config.json").exists() and any(path.glob("*.safetensors*")):
            return SafetensorsCheckpoint(path)
        return GGUFCheckpoint(_only_gguf(path))
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    if path.suffix == ".safetensors":
        raise CheckpointError(
            f"{path} is a weight file without its configuration; "
            "name its directory, with config.json, instead"
        )
    return GGUFCheckpoint(path)


def _only_gguf(directory: Path) -> Path:
    files = sorted(directory.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files)
        raise CheckpointError(f"{directory} has {len(files)} GGUF files; name one of them: {names}")
    if any(directory.glob("*.bin")) or any(directory.glob("*.pth")):
        raise CheckpointError(
            f"{directory} has its weights as PyTorch pickles, which can run code when they are read; "
            "convert them to safetensors"
        )
    missing = "safetensors files" if (directory / "config.json").exists() else "config.json"
    raise CheckpointError(f"{directory} is not a model: it has no {missing} and no GGUF file")


def _refuse_quantized(path: Path, config: dict[str, Any]) -> None:
    quantization = config.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise CheckpointError(
            f"{path}: weights quantised with {method or 'an unknown method'} are not supported; "
            "use the unquantised model or a GGUF file"
        )
