"""AMD's zentorch as a provider of matrix products with unquantised weights.

Its operators work on whole tensors of the weight's type: for bf16 matrices activations are rounded to
bf16 before the product, and the product to bf16 after it (native operators do neither). It doesn't say
how a product depends on the number of rows, so it is always asked for the same number: rows go in tiles
of TILE_ROWS, the last one padded. A row's result then has no way to depend on the batch.

Importing zentorch takes seconds. It happens when a matrix is packed for it, or measured with it; where
earlier measurements chose another provider for every matrix, it never does.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokenmill.ops.reference import linear_around
from tokenmill.ops.rivals import ProviderFailed
from tokenmill.ops.table import Linear, OpParams
from tokenmill.weights.ggml_formats import dequantize
from tokenmill.weights.tensor import RawTensor

log = logging.getLogger("tokenmill.ops")

NAME = "zentorch"
TILE_ROWS = 16
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""How far, of the largest value, a product of the self-check may lie from torch's."""

Multiply = Callable[[Tensor, Tensor], Tensor]
"""(rows [TILE_ROWS, in_features], matrix as zentorch packs it) -> [TILE_ROWS, out_features]."""


@dataclass(frozen=True)
class ZentorchWeight:
    """A matrix as zentorch packs it. threads: how many it computes with."""

    matrix: Tensor
    multiply_tile: Multiply
    threads: int
    out_features: int
    in_features: int
    formats: tuple[str, ...]
    nbytes: int
    provider: str = NAME

    def multiply(self, x: Tensor) -> Tensor:
        """fp32 [n, in_features] -> fp32 [n, out_features]."""
        n, dtype = x.shape[0], self.matrix.dtype
        padded = torch.zeros(-(-n // TILE_ROWS) * TILE_ROWS, self.in_features, dtype=dtype)
        padded[:n] = x
        others = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            tiles = [self.multiply_tile(tile, self.matrix) for tile in torch.split(padded, TILE_ROWS)]
        finally:
            torch.set_num_threads(others)
        return torch.cat(tiles)[:n].float()

    def dense(self) -> Tensor:
        """The matrix as fp32 [out_features, in_features]: products with unit vectors are exact."""
        return self.multiply(torch.eye(self.in_features)).T.contiguous()


class ZentorchProvider:
    """Linear operators of an installed zentorch.

    version: what is installed. num_threads: how many threads its operators use.
    """

    name = NAME

    def __init__(self, version: str, num_threads: int) -> None:
        self.version = version
        self._num_threads = num_threads
        self._operators: Any = None

    def why_not(self, params: OpParams) -> str | None:
        """None for matrix products with its own weights."""
        if not isinstance(params, Linear):
            return "it multiplies matrices only"
        if params.weight.provider != NAME:
            return f"the weight is packed for {params.weight.provider}"
        return None

    def bind(self, params: OpParams) -> Callable[..., None]:
        """The operator, ready to be called."""
        assert isinstance(params, Linear)
        assert isinstance(params.weight, ZentorchWeight)
        return linear_around(params, params.weight.multiply)

    def why_not_pack(self, segments: Sequence[RawTensor]) -> str | None:
        """None for matrices of F32 or BF16, of one width and one format."""
        if {s.format for s in segments} not in ({"F32"}, {"BF16"}):
            return "it takes matrices of F32 or BF16 only"
        if any(len(s.shape) != 2 for s in segments) or len({s.shape[1] for s in segments}) != 1:
            return "it packs matrices of one width"
        return None

    def pack(self, segments: Sequence[RawTensor]) -> ZentorchWeight:
        """One matrix out of row segments. Raises ProviderFailed if zentorch does not work here."""
        operators = self._load()
        dtype = DTYPES[segments[0].format]
        matrix = torch.cat([dequantize(s).reshape(s.shape).to(dtype) for s in segments])
        weight = ZentorchWeight(
            matrix=self._try(operators.zentorch_weight_prepack_for_linear, matrix),
            multiply_tile=_tile_product(operators),
            threads=self._num_threads,
            out_features=matrix.shape[0],
            in_features=matrix.shape[1],
            formats=(segments[0].format,),
            nbytes=matrix.nbytes,
        )
        self._try(weight.multiply, torch.zeros(1, weight.in_features))
        return weight

    def _load(self) -> Any:
        """zentorch's operators, imported and checked once."""
        if self._operators is None:
            try:
                importlib.import_module(NAME)
            except Exception as error:  # whatever a foreign library raises, it isn't used
                raise ProviderFailed(NAME, f"it fails to load ({error})") from error
            operators = torch.ops.zentorch
            for dtype in TOLERANCE:
                reason = self._try(_disagreement, operators, dtype)
                if reason:
                    raise ProviderFailed(NAME, reason)
            self._operators = operators
        return self._operators

    @staticmethod
    def _try(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (RuntimeError, AttributeError, TypeError, NotImplementedError) as error:
            first = str(error).strip().splitlines()[:1]
            raise ProviderFailed(NAME, f"its operators fail here ({''.join(first)})") from error


def load_zentorch(num_threads: int) -> tuple[ZentorchProvider | None, str]:
    """zentorch, if it is installed and goes with this torch; nothing is imported yet.

    Returns (provider, its version) or (None, why there is none).
    """
    try:
        version = importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError:
        return None, "not installed"
    wanted = torch.__version__.split("+")[0]
    if version != wanted and not version.startswith(f"{wanted}."):
        reason = f"version {version} does not go with torch {wanted}; pip install 'tokenmill[zen]'"
        log.warning("zentorch is not used: %s", reason)
        return None, reason
    return ZentorchProvider(version, num_threads), f"version {version}, where it measures faster"


def _tile_product(operators: Any) -> Multiply:
    call = operators.zentorch_linear_unary

    def multiply_tile(x: Tensor, matrix: Tensor) -> Tensor:
        product: Tensor = call(x, matrix, None, is_weight_prepacked=True)
        return product

    return multiply_tile


def _disagreement(operators: Any, dtype: torch.dtype) -> str | None:
    """What is wrong with a small product, if anything: values, or that they depend on other rows."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(48, 64, generator=generator).to(dtype)
    x = torch.randn(TILE_ROWS, 64, generator=generator).to(dtype)
    packed = operators.zentorch_weight_prepack_for_linear(matrix)
    multiply = _tile_product(operators)
    got, want = multiply(x, packed).float(), x.float() @ matrix.float().T
    if not bool(((got - want).abs().max() <= TOLERANCE[dtype] * want.abs().max()).item()):
        return f"its products of {dtype} are wrong here"
    if not torch.equal(multiply(x.flip(0), packed).float().flip(0), got):
        return f"its products of {dtype} depend on a row's place"
    return None
