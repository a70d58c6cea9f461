"""The matrices of one model as they were packed at an earlier start."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill import __version__
from tokenmill.config import LoadConfig
from tokenmill.ops.native import NativeProvider, NativeWeight
from tokenmill.ops.table import Weight
from tokenmill.weights.packed_cache import PackedCache, files_identity
from tokenmill.weights.packed_file import PackedMatrix

if TYPE_CHECKING:
    from tokenmill.weights.checkpoint import Checkpoint

log = logging.getLogger("tokenmill.weights")


class PackedWeights:
    """Hands out what is on disk, and puts what had to be packed there.

    model, key: what the file is found by. found: its matrices, by what they were packed from.
    """

    def __init__(
        self,
        cache: PackedCache,
        model: str,
        key: str,
        provider: NativeProvider,
        found: Mapping[str, PackedMatrix],
    ) -> None:
        self._cache = cache
        self.model = model
        self.key = key
        self._provider = provider
        self._found = found
        self._used: dict[str, NativeWeight] = {}
        self._hits = 0

    def get(self, name: str) -> Weight | None:
        """The matrix of that name, over the mapped file; None if it must be packed."""
        packed = self._found.get(name)
        if packed is None:
            return None
        try:
            weight = self._provider.view(packed)
        except ValueError as error:
            log.warning("packed weights of %s are packed anew: %s", name, error)
            return None
        self._used[name] = weight
        self._hits += 1
        return weight

    def add(self, name: str, weight: Weight) -> None:
        """A matrix that was packed now."""
        if isinstance(weight, NativeWeight):
            self._used[name] = weight

    def keep(self) -> threading.Thread | None:
        """Writes the file if it lacks anything, beside whatever comes next; the process waits for it
        before it ends. Returns the writing thread, or None if there is nothing to write.
        """
        if self._hits == len(self._used):
            return None
        matrices = {name: weight.tiles() for name, weight in self._used.items()}
        arguments = (self.model, self.key, matrices)
        thread = threading.Thread(target=self._cache.write, args=arguments, name="packed-weights")
        thread.start()
        return thread

    def describe(self) -> str:
        """For people."""
        path = self._cache.path(self.model, self.key)
        return f"{self._hits} of {len(self._used)} matrices from {path}"


def open_packed_weights(
    cache: PackedCache, checkpoint: Checkpoint, load: LoadConfig, provider: NativeProvider
) -> PackedWeights | None:
    """What is on disk of this checkpoint, loaded like this, in the provider's layout.

    None if the checkpoint has no files that could be told from others.
    """
    path = checkpoint.path
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        return None
    try:
        identity = files_identity(files)
    except OSError as error:
        log.warning("packed weights are not used: cannot read %s: %s", path, error.strerror or error)
        return None
    key = json.dumps(
        {
            "tokenmill": __version__,
            "files": identity,
            "layout": provider.layout(),
            "dtype": load.dtype,
            "quantization": load.quantization,
        }
    )
    model = str(Path(path).absolute())
    return PackedWeights(cache, model, key, provider, cache.read(model, key))
