"""tokenmill: an LLM inference and serving engine with the CPU as a first-class device.

Names are imported on first use, so that ``import tokenmill`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tokenmill.engine.pooling import PoolingParams
    from tokenmill.engine.sampling_params import SamplingParams
    from tokenmill.engine.structured_outputs import StructuredOutputs
    from tokenmill.llm import LLM

__all__ = ["LLM", "PoolingParams", "SamplingParams", "StructuredOutputs", "__version__"]


def __getattr__(name: str) -> object:
    if name == "LLM":
        import warnings

        with warnings.catch_warnings():
            # torch tells that numpy is missing; nothing here needs it
            warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
            from tokenmill.llm import LLM

        return LLM
    if name == "SamplingParams":
        from tokenmill.engine.sampling_params import SamplingParams

        return SamplingParams
    if name == "StructuredOutputs":
        from tokenmill.engine.structured_outputs import StructuredOutputs

        return StructuredOutputs
    if name == "PoolingParams":
        from tokenmill.engine.pooling import PoolingParams

        return PoolingParams
    raise AttributeError(f"module 'tokenmill' has no attribute {name!r}")
