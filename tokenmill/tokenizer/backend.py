"""What turns text into ids: one interface, whether the library does it or this package."""

from __future__ import annotations

from typing import Protocol

import tokenizers


class Backend(Protocol):
    """Text to ids, and names of tokens. Safe to use from several threads."""

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a text without lone surrogates. Special tokens written in it are recognised."""
        ...

    def id_to_token(self, token_id: int) -> str | None:
        """The name of a token."""
        ...

    def token_to_id(self, token: str) -> int | None:
        """The id of a name."""
        ...


class LibraryBackend:
    """A tokenizer of the ``tokenizers`` library."""

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        library.no_truncation()
        library.no_padding()
        self._library = library
        self.vocab_size: int = library.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a text."""
        # A batch of one: only batches let other threads run meanwhile, and this kind of batch leaves
        # out the places of tokens in the text, which takes as long as finding the ids.
        (encoding,) = self._library.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def id_to_token(self, token_id: int) -> str | None:
        """The name of a token."""
        token: str | None = self._library.id_to_token(token_id)
        return token

    def token_to_id(self, token: str) -> int | None:
        """The id of a name."""
        token_id: int | None = self._library.token_to_id(token)
        return token_id
