"""Which family a model belongs to, as its chat template tells."""

from __future__ import annotations

from collections.abc import Mapping

from tokenmill.errors import ConfigError
from tokenmill.server.tools.deepseek import DeepSeek
from tokenmill.server.tools.family import Family
from tokenmill.server.tools.glm import Glm
from tokenmill.server.tools.harmony import Harmony
from tokenmill.server.tools.hermes import Hermes
from tokenmill.server.tools.kimi import Kimi
from tokenmill.server.tools.llama_json import LlamaJson
from tokenmill.server.tools.llama_pythonic import LlamaPythonic
from tokenmill.server.tools.mistral import Mistral
from tokenmill.server.tools.qwen3_coder import Qwen3Coder

# The more particular ones first: several write <tool_call>.
FAMILIES: tuple[type[Family], ...] = (
    Harmony,
    Kimi,
    DeepSeek,
    Mistral,
    Qwen3Coder,
    Glm,
    Hermes,
    LlamaPythonic,
    LlamaJson,
)

NAMES = tuple(family.name for family in FAMILIES)


def choose_family(templates: Mapping[str, str], name: str | None = None) -> Family:
    """The family of a model with these chat templates, or the one that is asked for.

    Models that no template tells about are taken for Hermes', which many were trained on. Raises
    ConfigError if there is no family of that name.
    """
    text = "\n".join(templates.values())
    if name is not None:
        for family in FAMILIES:
            if family.name == name:
                return family(text)
        raise ConfigError(f"there is no tool parser {name!r}; choose one of {', '.join(NAMES)}")
    for family in FAMILIES:
        if family.recognises(text):
            return family(text)
    return Hermes(text)
