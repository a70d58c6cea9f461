"""Between callers and the engine: prompts become engine requests, token outputs become answers.

Runs on the caller's side (an event loop, or the thread that called ``LLM.generate``), never on the
engine's thread.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from tokenmill.engine.core import EngineLimits, check_request
from tokenmill.engine.outputs import (
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    FinishReason,
    Logprob,
    PooledOutput,
    PositionLogprobs,
    RequestMetrics,
    RequestOutput,
    TokenOutput,
)
from tokenmill.engine.pooling import Pooling, PoolingParams, PoolingTask
from tokenmill.engine.request import EngineRequest
from tokenmill.engine.sampling_params import RequestOutputKind, SamplingParams
from tokenmill.engine.structured_outputs import StructuredOutputs
from tokenmill.engine.text import MakeTextStream, NoText, TextStream, Tokenizer
from tokenmill.errors import RequestError

if TYPE_CHECKING:
    from tokenmill.engine.grammars import AnswerGrammar, Grammars


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids; its text, if given, is only repeated in outputs."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt
"""Text, or token ids, or a dictionary with one of them."""


class Answer:
    """One of the n answers to a prompt."""

    def __init__(self, index: int, request_id: str, stream: TextStream) -> None:
        self.index = index
        self.request_id = request_id
        self.stream = stream
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[dict[int, Logprob]] = []
        self.cumulative_logprob = 0.0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self._sent_text = 0
        self._sent_tokens = 0

    def output(self, params: SamplingParams) -> CompletionOutput:
        """What callers see: everything so far, or what is new since the last call."""
        text_from = token_from = 0
        if params.output_kind is RequestOutputKind.DELTA:
            text_from, token_from = self._sent_text, self._sent_tokens
            self._sent_text, self._sent_tokens = len(self.text), len(self.token_ids)
        wants_logprobs = params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text=self.text[text_from:],
            token_ids=self.token_ids[token_from:],
            cumulative_logprob=self.cumulative_logprob if wants_logprobs else None,
            logprobs=self.logprobs[token_from:] if wants_logprobs else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


class Conversation:
    """One prompt and its answers, as the caller knows them."""

    def __init__(
        self,
        front: Front,
        request_id: str,
        text: str | None,
        token_ids: list[int],
        params: SamplingParams,
        answers: list[Answer],
    ) -> None:
        self.request_id = request_id
        self.params = params
        self._front = front
        self._text = text
        self._token_ids = token_ids
        self._answers = {answer.request_id: answer for answer in answers}
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._metrics: RequestMetrics | None = None
        self._num_cached: int | None = None

    @property
    def finished(self) -> bool:
        """Whether every answer has ended."""
        return all(answer.finish_reason for answer in self._answers.values())

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The engine's names of the answers that have not ended."""
        return tuple(a.request_id for a in self._answers.values() if a.finish_reason is None)

    @property
    def engine_ids(self) -> tuple[str, ...]:
        """The engine's names of all answers."""
        return tuple(self._answers)

    def accept(self, out: TokenOutput) -> bool:
        """Take in new tokens. True if a stop text was found: then the engine must drop the answer."""
        answer = self._answers[out.request_id]
        if answer.finish_reason is not None:
            return False
        if self._metrics is None:
            self._metrics, self._num_cached = out.metrics, out.num_cached_tokens
        if out.prompt_logprobs is not None and self._prompt_logprobs is None:
            self._prompt_logprobs = [
                None if entry is None else self._front.named(entry) for entry in out.prompt_logprobs
            ]
        visible = out.token_ids
        if out.finish_reason == "stop" and not self.params.include_stop_str_in_output:
            visible = visible[:-1]
        text = answer.stream.push(visible)
        answer.token_ids += out.token_ids
        if out.logprobs is not None:
            answer.logprobs += [self._front.named(entry) for entry in out.logprobs]
            answer.cumulative_logprob += sum(entry[0].logprob for entry in out.logprobs)
        answer.finish_reason, answer.stop_reason = out.finish_reason, out.stop_reason
        if out.finish_reason is not None:
            text += answer.stream.finish()
        answer.text += text
        if answer.stream.stopped_by is None:
            return False
        must_abort = out.finish_reason is None
        if out.finish_reason != "stop" or out.stop_reason is not None:
            answer.finish_reason, answer.stop_reason = "stop", answer.stream.stopped_by
        if must_abort:
            out.metrics.finished_time = time.monotonic()
        return must_abort

    def end_as_aborted(self) -> None:
        """The caller wants no more."""
        for answer in self._answers.values():
            if answer.finish_reason is None:
                answer.text += answer.stream.finish()
                answer.finish_reason = "abort"

    def output(self) -> RequestOutput:
        """The present state."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._text,
            prompt_token_ids=self._token_ids,
            outputs=[answer.output(self.params) for answer in self._answers.values()],
            finished=self.finished,
            prompt_logprobs=self._prompt_logprobs,
            metrics=self._metrics,
            num_cached_tokens=self._num_cached,
        )


class PooledPrompt:
    """One prompt whose vector is wanted. request_id: the caller's name for it."""

    def __init__(self, request_id: str, request: EngineRequest) -> None:
        self.request_id = request_id
        self.request = request
        self._pooled: PooledOutput | None = None

    @property
    def finished(self) -> bool:
        """Whether the vector is there."""
        return self._pooled is not None

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The engine's name of the request, while there is no vector."""
        return () if self.finished else self.engine_ids

    @property
    def engine_ids(self) -> tuple[str, ...]:
        """The engine's name of the request."""
        return (self.request.request_id,)

    def accept(self, out: PooledOutput) -> bool:
        """Take in the vector. False: there is nothing that the engine would have to drop."""
        self._pooled = out
        return False

    def output(self) -> EmbeddingRequestOutput:
        """The vector, which must be there."""
        assert self._pooled is not None
        return EmbeddingRequestOutput(
            request_id=self.request_id,
            outputs=EmbeddingOutput(self._pooled.embedding),
            prompt_token_ids=list(self.request.prompt),
            num_cached_tokens=self._pooled.num_cached_tokens,
            metrics=self._pooled.metrics,
        )


@dataclass(frozen=True)
class Prepared:
    """A prompt ready for the engine."""

    conversation: Conversation
    requests: tuple[EngineRequest, ...]


class Front:
    """Prepares prompts for one model.

    tokenizer: None serves token ids only. eos_ids: tokens that end an answer. default_params,
    default_pooling: what the model's authors recommend. make_grammars: called once, when an answer
    first needs a form.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        make_text_stream: MakeTextStream | None,
        limits: EngineLimits,
        eos_ids: frozenset[int],
        default_params: SamplingParams | None = None,
        default_pooling: Pooling = "last",
        make_grammars: Callable[[], Grammars] | None = None,
    ) -> None:
        self.limits = limits
        self.default_pooling = default_pooling
        self.default_params = default_params or SamplingParams()
        self._tokenizer = tokenizer
        self._make_text_stream = make_text_stream
        self._eos_ids = eos_ids
        self._grammars = cache(make_grammars) if make_grammars is not None else None
        self._serial = itertools.count()
        self._token_text = lru_cache(maxsize=4096)(self._decode_one)

    def tokenize(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Text (if it was given) and token ids of a prompt. Raises RequestError if it is neither."""
        if isinstance(prompt, Mapping):
            keys = [k for k in ("prompt_token_ids", "prompt") if prompt.get(k) is not None]
            if not keys:
                raise RequestError("a prompt needs 'prompt' (text) or 'prompt_token_ids'")
            text: Any = prompt.get("prompt")
            value: Any = prompt[keys[0]]  # type: ignore[literal-required]
        else:
            text, value = None, prompt
        if isinstance(value, str):
            if self._tokenizer is None:
                raise RequestError("this model has no tokenizer; give the prompt as token ids")
            return value, self._tokenizer.encode(value)
        if not isinstance(value, Sequence) or not all(
            isinstance(t, int) and not isinstance(t, bool) for t in value
        ):
            raise RequestError("a prompt must be text or a list of token ids")
        return text, list(value)

    def prepare(
        self,
        text: str | None,
        token_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Prepared:
        """Engine requests, one for each of n answers. Raises RequestError if they can't be served."""
        if params.detokenize and self._make_text_stream is None and params.stop:
            raise RequestError("this model has no tokenizer, so it can't stop at texts")
        bad_words = self._bad_words(params.bad_words or ())
        form = params.structured_outputs
        if form is not None and self._grammars is None:
            raise RequestError("this model has no tokenizer, so it can't give answers a form")
        seed = secrets.randbits(63) if params.seed is None else params.seed
        leader: str | None = None
        requests: list[EngineRequest] = []
        answers: list[Answer] = []
        for index in range(params.n):
            name = f"{next(self._serial)}:{request_id}"
            requests.append(
                EngineRequest(
                    request_id=name,
                    prompt=token_ids,
                    params=params,
                    seed=seed,
                    eos_ids=self._eos_ids,
                    bad_words=bad_words,
                    sample=index,
                    priority=priority,
                    leader=leader,
                    cache_extra=cache_salt,
                    grammar=self._grammar(form),
                )
            )
            leader = leader or name
            answers.append(Answer(index, name, self._stream(params, token_ids)))
        check_request(requests[0], self.limits)
        conversation = Conversation(self, request_id, text, token_ids, params, answers)
        return Prepared(conversation, tuple(requests))

    def _grammar(self, form: StructuredOutputs | Mapping[str, Any] | None) -> AnswerGrammar | None:
        if form is None or self._grammars is None:
            return None
        return self._grammars().answer(StructuredOutputs.read(form))

    def prepare_pooling(
        self,
        token_ids: list[int],
        params: PoolingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> PooledPrompt:
        """An engine request for a vector. Raises RequestError if it can't be served."""
        request = EngineRequest(
            request_id=f"{next(self._serial)}:{request_id}",
            prompt=token_ids,
            params=SamplingParams(),
            seed=0,
            priority=priority,
            cache_extra=cache_salt,
            pooling=PoolingTask(
                params.pooling or self.default_pooling, params.dimensions, params.normalize
            ),
        )
        check_request(request, self.limits)
        return PooledPrompt(request_id, request)

    def named(self, entry: PositionLogprobs) -> dict[int, Logprob]:
        """Candidates by token id, with their texts."""
        return {
            token: Logprob(logprob, rank, self._token_text(token)) for token, logprob, rank in entry
        }

    def _decode_one(self, token: int) -> str | None:
        if self._tokenizer is None:
            return None
        return self._tokenizer.token_bytes(token).decode(errors="replace")

    def _stream(self, params: SamplingParams, prompt: Sequence[int]) -> TextStream:
        if self._make_text_stream is None or not params.detokenize:
            return NoText()
        return self._make_text_stream(params, prompt)

    def _bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each word's token ids, at the start of a text and after a space."""
        if words and self._tokenizer is None:
            raise RequestError("this model has no tokenizer, so it can't know bad words")
        spellings: dict[tuple[int, ...], None] = {}
        for word in words:
            for spelling in (word.lstrip(), " " + word.lstrip()):
                assert self._tokenizer is not None
                token_ids = tuple(self._tokenizer.encode(spelling, add_special_tokens=False))
                if token_ids:
                    spellings[token_ids] = None
        return tuple(spellings)
