"""What is known of each family of models that call tools."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tokenmill.server.tools.output import Output
from tokenmill.server.tools.source import Reading, Source

ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class Function:
    """A tool. parameters: JSON Schema of its arguments. strict: arguments must meet the schema."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


Functions = Mapping[str, Function]
"""By name."""

Mark = Callable[[str], str]
"""A mark as an expression of a grammar: a special token, or the text of one."""


class Family(ABC):
    """How calls are written.

    marks: special tokens that its parser must see. trigger: what begins calls wherever it stands; None
    if only the beginning of an answer tells that it is a call. any_words: what can't be taken for
    calls, as an expression of a grammar. template: of the model, for variants.
    """

    name: ClassVar[str]
    marks: ClassVar[tuple[str, ...]] = ()
    trigger: ClassVar[str | None]
    any_words: ClassVar[str] = "/(?s:.*)/"

    def __init__(self, template: str = "") -> None:
        self.template = template

    @classmethod
    @abstractmethod
    def recognises(cls, template: str) -> bool:
        """Whether a chat template tells models to write calls like this."""

    @abstractmethod
    def parse(self, source: Source, out: Output, functions: Functions) -> Reading[None]:
        """Read an answer to its end."""

    @abstractmethod
    def grammar(self, functions: Sequence[Function], mark: Mark, *, parallel: bool) -> str:
        """Rules in the notation of llguidance (https://github.com/guidance-ai/llguidance/blob/main/
        docs/syntax.md). ``calls`` is one call, or several if ``parallel``; where there is a trigger,
        it begins with ``trigger``, which the caller defines.
        """

    def words(self, form: str | None, functions: Sequence[Function], mark: Mark) -> str:
        """Rules in which ``words`` is an answer without what ``grammar`` calls calls.

        form: what it has to be, as an expression; None is any text. functions: that may be called.
        """
        return f"words: {form or self.any_words}"

    def call_id(self) -> str:
        """The name of a new call."""
        return f"call_{uuid.uuid4().hex[:24]}"
