"""Text to token ids and back, chat templates, and text as it comes in."""

from __future__ import annotations

from tokenmill.tokenizer.chat_template import ChatTemplate
from tokenmill.tokenizer.detokenizer import IncrementalDetokenizer
from tokenmill.tokenizer.load import load_tokenizer
from tokenmill.tokenizer.stop_strings import StopStringChecker
from tokenmill.tokenizer.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "IncrementalDetokenizer",
    "StopStringChecker",
    "Tokenizer",
    "load_tokenizer",
]
