"""SentencePiece's BPE: the two neighbours whose union scores highest are joined, again and again.

The ``tokenizers`` library needs the list of merges in order, which GGUF files of this kind don't
have. It would have to be made by cutting each of up to 262,144 tokens in every way and sorting the
cuts, which takes longer than loading the rest of the model. Working from the scores needs nothing but
a dictionary, and follows SentencePiece where merges can't: equal scores are joined from the left.

After T. Kudo and J. Richardson, "SentencePiece" (2018), and its bpe_model.
"""

from __future__ import annotations

import re
from functools import lru_cache
from heapq import heapify, heappop, heappush

from tokenizers import normalizers

from tokenmill.errors import CheckpointError
from tokenmill.tokenizer.added_tokens import AddedTokens
from tokenmill.tokenizer.decoding import SPACE_MARK
from tokenmill.tokenizer.vocabulary import TokenType, Vocabulary

CACHED_WORDS = 1 << 15
CACHED_WORD_LENGTH = 48


class SentencePieceBPE:
    """A Backend for vocabularies with scores. strips_right: ids after which white space is dropped.

    Raises CheckpointError if the vocabulary has no scores, or can't write every text.
    """

    def __init__(self, vocabulary: Vocabulary, *, strips_right: frozenset[int] = frozenset()) -> None:
        tokens = vocabulary.tokens
        if len(vocabulary.scores) != len(tokens):
            raise CheckpointError(
                "the vocabulary has no scores (tokenizer.ggml.scores), which SentencePiece's BPE "
                "needs; convert the model again"
            )
        self.vocab_size = len(tokens)
        self._tokens = tokens
        self._scores = vocabulary.scores
        marks = vocabulary.ids_of(TokenType.UNKNOWN, TokenType.CONTROL)
        self._byte_ids = _byte_ids(vocabulary)
        self._unknown = vocabulary.special_ids.get("unk_token")
        if self._unknown is None and None in self._byte_ids:
            raise CheckpointError(
                "the vocabulary has neither a token for each byte nor one for unknown text; "
                "convert the model again"
            )
        # Text never becomes a mark or a byte by joining characters, only by being one.
        reserved = vocabulary.ids_of(TokenType.UNKNOWN, TokenType.CONTROL, TokenType.BYTE)
        self._pieces = dict(zip(tokens, range(len(tokens)), strict=True))
        self._reserved = {tokens[index]: index for index in reserved}
        for token in self._reserved:
            self._pieces.pop(token, None)
        written = {tokens[index]: index for index in marks}
        for index in vocabulary.ids_of(TokenType.USER_DEFINED):
            # SentencePiece looks for these after it has marked the spaces, we look before.
            written[tokens[index].replace(SPACE_MARK, " ")] = index
        self._added = AddedTokens(written, strips_right)
        self._prefix, self._suffix = vocabulary.prefix_and_suffix()
        self._add_space = vocabulary.add_space_prefix
        self._one_space = vocabulary.remove_extra_spaces
        self._normalizer = _normalizer(vocabulary.charsmap)
        self._words = _word_boundary(tokens)
        self._join_cached = lru_cache(maxsize=CACHED_WORDS)(self._join)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a text."""
        ids: list[int] = [*self._prefix] if add_special_tokens else []
        after_mark = True
        for part in self._added.split(text):
            if isinstance(part, int):
                ids.append(part)
                after_mark = True
            else:
                self._encode_plain(part, ids, space_first=self._add_space and after_mark)
                after_mark = False
        if add_special_tokens:
            ids += self._suffix
        return ids

    def id_to_token(self, token_id: int) -> str | None:
        """The name of a token."""
        return self._tokens[token_id] if token_id < len(self._tokens) else None

    def token_to_id(self, token: str) -> int | None:
        """The id of a name."""
        return self._reserved.get(token, self._pieces.get(token))

    def _encode_plain(self, text: str, ids: list[int], *, space_first: bool) -> None:
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        if self._one_space:
            text = re.sub(" {2,}", " ", text.strip(" "))
        if not text:
            return
        if space_first:
            text = " " + text
        for word in self._words.split(text.replace(" ", SPACE_MARK)):
            if len(word) <= CACHED_WORD_LENGTH:
                ids += self._join_cached(word)
            elif word:
                ids += self._join(word)

    def _join(self, word: str) -> tuple[int, ...]:
        """Ids of a word that no token reaches out of."""
        pieces, scores = self._pieces, self._scores
        known = pieces.get(word)
        if known is not None and len(word) == 1:
            return (known,)
        parts: list[str] = list(word)
        count = len(parts)
        following = list(range(1, count + 1))
        preceding = list(range(-1, count - 1))
        # A pair is (-score, left, its text): the smallest is the best, and of equals the leftmost.
        heap: list[tuple[float, int, int, str]] = []
        for left in range(count - 1):
            joined = parts[left] + parts[left + 1]
            token = pieces.get(joined)
            if token is not None:
                heap.append((-scores[token], left, left + 1, joined))
        heapify(heap)
        while heap:
            _, left, right, joined = heappop(heap)
            # Stale if either part has since become longer or been taken up by its neighbour.
            if (
                not parts[left]
                or not parts[right]
                or len(parts[left]) + len(parts[right]) != len(joined)
            ):
                continue
            parts[left], parts[right] = joined, ""
            after = following[right]
            following[left] = after
            if after < count:
                preceding[after] = left
                longer = joined + parts[after]
                token = pieces.get(longer)
                if token is not None:
                    heappush(heap, (-scores[token], left, after, longer))
            before = preceding[left]
            if before >= 0:
                longer = parts[before] + joined
                token = pieces.get(longer)
                if token is not None:
                    heappush(heap, (-scores[token], before, left, longer))
        ids: list[int] = []
        for part in parts:
            if part:
                token = pieces.get(part)
                if token is not None:
                    ids.append(token)
                else:
                    self._fall_back(part, ids)
        return tuple(ids)

    def _fall_back(self, char: str, ids: list[int]) -> None:
        """A character that is no token: its bytes, or the unknown token (once for a run of them)."""
        byte_ids = [self._byte_ids[byte] for byte in char.encode()]
        if None not in byte_ids:
            ids += [byte for byte in byte_ids if byte is not None]
        elif self._unknown is not None and ids[-1:] != [self._unknown]:
            ids.append(self._unknown)


def _byte_ids(vocabulary: Vocabulary) -> list[int | None]:
    """The token of each byte, by its name: <0x00> to <0xFF>."""
    found = {vocabulary.tokens[index]: index for index in vocabulary.ids_of(TokenType.BYTE)}
    return [found.get(f"<0x{byte:02X}>") for byte in range(256)]


def _normalizer(charsmap: bytes) -> normalizers.Precompiled | None:
    if not charsmap:
        return None
    try:
        return normalizers.Precompiled(charsmap)
    except Exception as error:
        raise CheckpointError(
            f"the vocabulary's normalisation rules are malformed ({error}); convert the model again"
        ) from error


def _word_boundary(tokens: list[str]) -> re.Pattern[str]:
    """Places where a text can be cut without changing its tokens: before a space, unless some token
    has the same character before a space within it. Few vocabularies have such tokens at all."""
    before_a_space = {part[-1:] for part in "\0".join(("", *tokens)).split(SPACE_MARK)[:-1]}
    kept = "".join(map(re.escape, sorted(before_a_space - {"", "\0"})))
    return re.compile(f"(?<=[^{SPACE_MARK}{kept}])(?={SPACE_MARK})")
