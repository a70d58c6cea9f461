"""Models that think before they answer: where their thoughts begin and end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenmill.server.tools.output import Output
from tokenmill.server.tools.source import Reading, Source


@dataclass(frozen=True)
class Reasoning:
    """What stands before and after thoughts."""

    begin: str
    end: str

    def is_open(self, prompt: str, continued: str | None = None) -> bool:
        """Whether an answer to this prompt begins with thoughts.

        continued: the last message, if the answer goes on with it.
        """
        if prompt.rstrip().endswith(self.begin):
            return True
        return continued is not None and continued.rfind(self.begin) > continued.rfind(self.end)

    def parse(self, source: Source, out: Output, *, opened: bool) -> Reading[None]:
        """Read thoughts, if there are some; what follows them is left."""
        space = yield from source.space()
        if not (yield from source.accept(self.begin)) and not opened:
            source.put_back(space)
            return
        yield from source.until((self.end,), out.think)


KNOWN = (
    Reasoning("<think>", "</think>"),  # DeepSeek, Qwen, GLM, Kimi, SmolLM3, ...
    Reasoning("[THINK]", "[/THINK]"),  # Magistral
    Reasoning("<seed:think>", "</seed:think>"),  # Seed-OSS
)


def choose_reasoning(templates: Mapping[str, str]) -> Reasoning | None:
    """How a model with these chat templates writes thoughts; None if they don't tell of any."""
    text = "\n".join(templates.values())
    return next((one for one in KNOWN if one.begin in text or one.end in text), None)
