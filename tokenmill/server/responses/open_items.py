"""Items of an answer while they are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from tokenmill.server.responses.items import Item, new_id, output_text, reasoning


class OpenItem(ABC):
    """An item that is being written. kind: of the events that tell of its text."""

    kind: ClassVar[str]

    def __init__(self, prefix: str) -> None:
        self.item_id = new_id(prefix)
        self._texts: list[str] = []
        self._logprobs: list[Item] = []

    @property
    def text(self) -> str:
        """So far."""
        return "".join(self._texts)

    def extend(self, text: str, logprobs: Sequence[Item] = ()) -> None:
        """Write on."""
        self._texts.append(text)
        self._logprobs += logprobs

    @abstractmethod
    def begun(self) -> Item:
        """The item when nothing is written yet."""

    @abstractmethod
    def ended(self, status: str) -> Item:
        """The item when nothing will be added."""

    @abstractmethod
    def done(self) -> dict[str, Any]:
        """What the event has to say that tells that the text is complete."""


class OpenContent(OpenItem):
    """An item whose content is one part, which is written."""

    @abstractmethod
    def part(self) -> Item:
        """The part so far."""


class OpenReasoning(OpenContent):
    """What the model thinks."""

    kind = "reasoning_text"

    def __init__(self) -> None:
        super().__init__("rs")

    def begun(self) -> Item:
        """See OpenItem."""
        return reasoning(self.item_id, "", "in_progress")

    def ended(self, status: str) -> Item:
        """See OpenItem."""
        return reasoning(self.item_id, self.text, status)

    def part(self) -> Item:
        """See OpenContent."""
        return {"type": "reasoning_text", "text": self.text}

    def done(self) -> dict[str, Any]:
        """See OpenItem."""
        return {"text": self.text}


class OpenMessage(OpenContent):
    """What the model says."""

    kind = "output_text"

    def __init__(self) -> None:
        super().__init__("msg")

    def begun(self) -> Item:
        """See OpenItem."""
        return {**self._head("in_progress"), "content": []}

    def ended(self, status: str) -> Item:
        """See OpenItem."""
        return {**self._head(status), "content": [self.part()]}

    def part(self) -> Item:
        """See OpenContent."""
        return output_text(self.text, self._logprobs)

    def done(self) -> dict[str, Any]:
        """See OpenItem."""
        return {"text": self.text, "logprobs": self._logprobs}

    def _head(self, status: str) -> Item:
        return {"type": "message", "id": self.item_id, "role": "assistant", "status": status}


class OpenCall(OpenItem):
    """A function that the model calls; the text is its arguments."""

    kind = "function_call_arguments"

    def __init__(self, call_id: str, name: str) -> None:
        super().__init__("fc")
        self._call_id = call_id
        self._name = name

    def begun(self) -> Item:
        """See OpenItem."""
        return self._values("", "in_progress")

    def ended(self, status: str) -> Item:
        """See OpenItem."""
        return self._values(self.text, status)

    def done(self) -> dict[str, Any]:
        """See OpenItem."""
        return {"arguments": self.text, "name": self._name}

    def _values(self, arguments: str, status: str) -> Item:
        return {
            "type": "function_call",
            "id": self.item_id,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": arguments,
            "status": status,
        }
