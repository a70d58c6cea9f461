"""The tokenizer of one model, wherever it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenmill.tokenizer.backend import Backend
from tokenmill.tokenizer.chat_template import ChatTemplate
from tokenmill.tokenizer.decoding import Decoding
from tokenmill.tokenizer.detokenizer import IncrementalDetokenizer


class Tokenizer:
    """Text to token ids and back. Safe to use from several threads.

    bos_token_id: the token that begins a text, if the model has one.
    eos_token_ids: tokens that end an answer.
    special_ids: tokens that are marks rather than text (BOS, EOS, ends of turns, padding, ...).
    special_tokens: marks by the names that chat templates use ("bos_token": "<s>").
    chat_template: how a conversation is written for this model; None if it has no template.
    """

    def __init__(
        self,
        backend: Backend,
        decoding: Decoding,
        *,
        bos_token_id: int | None,
        eos_token_ids: frozenset[int],
        special_ids: frozenset[int],
        special_tokens: Mapping[str, str],
        chat_template: ChatTemplate | None,
    ) -> None:
        self.decoding = decoding
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self.special_ids = special_ids
        self.special_tokens = special_tokens
        self.chat_template = chat_template
        self._backend = backend
        self._bytes: dict[int, bytes] = {}

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return self._backend.vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text. Special tokens written in it are recognised; lone surrogates become U+FFFD.

        add_special_tokens: put BOS before and EOS after it, where the model wants them. Use False for
        what a chat template has written, since templates write BOS themselves.
        """
        return self._backend.encode(valid_unicode(text), add_special_tokens=add_special_tokens)

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Ids of each text."""
        return [self.encode(text, add_special_tokens) for text in texts]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Bytes that are not UTF-8 become U+FFFD; unknown ids are left out."""
        detokenizer = IncrementalDetokenizer(self, skip_special_tokens=skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.finish()

    def id_to_token(self, token_id: int) -> str | None:
        """A token's name in the vocabulary, or None if there is no such token."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None

    def token_to_id(self, token: str) -> int | None:
        """The id of a name in the vocabulary, or None."""
        return self._backend.token_to_id(token)

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a mark rather than text."""
        return token_id in self.special_ids

    def token_bytes(self, token_id: int, *, first: bool = False) -> bytes:
        """The bytes of a token; first: as the first of a text. Empty if there is no such token."""
        if first and self.decoding.first_to_bytes is not None:
            name = self.id_to_token(token_id)
            return b"" if name is None else self.decoding.first_to_bytes(name)
        data = self._bytes.get(token_id)
        if data is None:
            name = self.id_to_token(token_id)
            data = b"" if name is None else self.decoding.to_bytes(name)
            if name is not None:
                self._bytes[token_id] = data
        return data


def valid_unicode(text: str) -> str:
    """The text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
