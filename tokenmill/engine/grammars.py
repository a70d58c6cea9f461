"""Answers of a given form: which tokens may come next, by the library llguidance.

A mask is computed on a thread of its own as soon as a token is known, while the next forward step runs,
and is waited for only when its logits are there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import llguidance
import torch
from llguidance import LLMatcher, LLTokenizer

from tokenmill.engine.form_checker import FormChecker
from tokenmill.engine.grammar_text import GrammarError, grammar_limits, grammar_of, guarded, summary
from tokenmill.engine.structured_outputs import FORMS, StructuredOutputs
from tokenmill.errors import RequestError

if TYPE_CHECKING:
    from tokenmill.tokenizer import Tokenizer

CACHED_GRAMMARS = 64
BITS = 32


class _Vocabulary:
    """A tokenizer as llguidance asks for it."""

    def __init__(self, tokenizer: Tokenizer, eos_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_id
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [self._bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)

    def _bytes(self, token: int) -> bytes:
        if self._tokenizer.is_special(token):
            return (self._tokenizer.id_to_token(token) or "").encode()
        return self._tokenizer.token_bytes(token)

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


class AnswerGrammar:
    """The form of one answer, and how much of it is written.

    Used by one thread at a time; ``prepare`` lets another compute the next mask. failed: why the form
    can't be followed any further (it got too complex); then any token that ends an answer may come.
    """

    def __init__(self, grammars: Grammars, matcher: LLMatcher, form: StructuredOutputs) -> None:
        after = form.after.encode() if form.after is not None else None
        self.failed: str | None = None
        self._grammars = grammars
        self._matcher = matcher
        self._after = after
        # Where the first token decides whether the form has to wait: that token, and for what.
        self._delay: tuple[int, bytes] | None = None
        if form.unless_begun_by is not None and after is not None:
            token = grammars.token_id(form.unless_begun_by)
            self._delay = (token, after) if token is not None else None
            self._after = None
        self._tail = b""
        self._bits = torch.zeros(-(-grammars.vocab_size // BITS), dtype=torch.int32)
        self._pending: Future[None] | None = None
        self.prepare()

    @property
    def active(self) -> bool:
        """Whether the form has begun."""
        return self._after is None

    @property
    def complete(self) -> bool:
        """Whether nothing can follow but the end."""
        self._wait()
        return self.active and (self.failed is not None or self._matcher.is_stopped())

    def prepare(self) -> None:
        """Begin to compute the mask of the next token."""
        if self.active and self.failed is None and not self._matcher.is_stopped():
            self._pending = self._grammars.threads.submit(self._compute)

    def mask(self) -> torch.Tensor | None:
        """bool [vocab]: what may come next; None if anything may. When nothing but the end may come,
        it is the tokens that end an answer."""
        if not self.active:
            return None
        self._wait()
        if self.failed is not None or self._matcher.is_stopped():
            return self._grammars.ends
        allowed = unpack(self._bits, self._grammars.vocab_size)
        if self._delay is not None:
            allowed[self._delay[0]] = True
        return allowed

    def accept(self, token: int) -> None:
        """The answer has grown by this token."""
        self._wait()
        delay, self._delay = self._delay, None
        if delay is not None and token == delay[0]:
            self._after = delay[1]
        elif self._after is not None:
            self._tail = (self._tail + self._grammars.token_bytes(token))[-len(self._after) - 256 :]
            if self._after in self._tail:
                self._after = None
        elif (
            self.failed is None
            and not self._matcher.is_stopped()
            and token not in self._grammars.end_ids
        ):
            try:
                guarded(self._matcher.consume_token, token)
            except GrammarError as error:
                self.failed = str(error)
            self._note_error()
        self.prepare()

    def _compute(self) -> None:
        size = self._bits.numel() * 4
        guarded(self._matcher.unsafe_compute_mask_ptr, self._bits.data_ptr(), size)

    def _wait(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            try:
                pending.result()
            except GrammarError as error:
                self.failed = str(error)
            self._note_error()

    def _note_error(self) -> None:
        if self.failed is None and self._matcher.is_error():
            self.failed = summary(self._matcher.get_error())


def unpack(bits: torch.Tensor, count: int) -> torch.Tensor:
    """bool [count] from int32 words, the lowest bit first."""
    return ((bits.unsqueeze(1) >> torch.arange(BITS)) & 1).flatten()[:count].bool()


class Grammars:
    """Compiles the forms of answers for one model. Safe to use from several threads.

    vocab_size: of the logits, which may be more than the tokenizer has. end_ids: tokens that end an
    answer.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: frozenset[int]) -> None:
        self.vocab_size = vocab_size
        self.end_ids = end_ids
        self.token_bytes = tokenizer.token_bytes
        self.token_id = tokenizer.token_to_id
        self.threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenmill-grammar")
        self.ends = torch.zeros(vocab_size, dtype=torch.bool)
        self.ends[sorted(end_ids)] = True
        self._tokenizer = tokenizer
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[StructuredOutputs, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        names = {token: tokenizer.id_to_token(token) or "" for token in tokenizer.special_ids}
        self._checker = FormChecker(vocab_size, names)

    def answer(self, form: StructuredOutputs) -> AnswerGrammar:
        """The form of a new answer.

        Raises RequestError, saying which part, if it is impossible, not supported or too complex.
        """
        with self._lock:
            matcher = self._compiled.get(form)
            tokens = self._known_tokens()
        if matcher is None:
            # Without the lock: forms that are known need not wait for one that is slow to compile.
            matcher = self._checked(form, tokens)
        with self._lock:
            self._compiled[form] = matcher
            self._compiled.move_to_end(form)
            if len(self._compiled) > CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
            copy = matcher.deep_copy()
        return AnswerGrammar(self, copy, form)

    def _checked(self, form: StructuredOutputs, tokens: LLTokenizer) -> LLMatcher:
        name = next(name for name in FORMS if getattr(form, name) not in (None, False))
        called = form.called or f"structured_outputs.{name}"
        problem = self._checker.problem(form)
        if problem is not None:
            raise RequestError(f"{called} can't be used: {problem}")
        return _compile(form, tokens, called)

    def _known_tokens(self) -> LLTokenizer:
        if self._vocabulary is None:
            ends = sorted(self.end_ids)
            wrapped = llguidance.TokenizerWrapper(_Vocabulary(self._tokenizer, ends[0]))
            self._vocabulary = LLTokenizer(wrapped, n_vocab=self.vocab_size, eos_token=ends)
        return self._vocabulary


def _compile(form: StructuredOutputs, tokens: LLTokenizer, called: str) -> LLMatcher:
    try:
        limits = grammar_limits()
        matcher = guarded(LLMatcher, tokens, grammar_of(form), log_level=0, limits=limits)
        # Some problems show only where the first token is chosen.
        trial = matcher.deep_copy()
        allowed = b"" if matcher.is_error() else guarded(trial.compute_bitmask)
        for used in (matcher, trial):
            if used.is_error():
                raise GrammarError(summary(used.get_error()))
    except GrammarError as error:
        raise RequestError(f"{called} can't be used: {error}") from None
    if not any(allowed):
        raise RequestError(f"{called} can't be met by any answer")
    return matcher
