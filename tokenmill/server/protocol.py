"""Request bodies of the OpenAI API as dataclasses, and the engine that the server needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenmill.engine.outputs import (
    EmbeddingRequestOutput,
    EngineStats,
    RequestOutput,
    TokenOutput,
)
from tokenmill.engine.pooling import PoolingParams
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.server.answer_format import AnswerFormat
from tokenmill.server.chat_messages import read_messages
from tokenmill.server.errors import ApiError
from tokenmill.server.fields import Fields, whole
from tokenmill.server.sampling import read_sampling
from tokenmill.server.tools.request import ToolUse, read_tool_use

Prompt = str | list[int]

MAX_PROMPTS = 256
"""Most prompts of one completions request."""


class ServingTemplate(Protocol):
    """A chat template; ``tokenmill.tokenizer.ChatTemplate`` is one."""

    @property
    def sources(self) -> Mapping[str, str]:
        """What is written in the templates, by name."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The text of a conversation."""
        ...


class ServingTokenizer(Protocol):
    """What is needed of a tokenizer; ``tokenmill.tokenizer.Tokenizer`` has it."""

    @property
    def chat_template(self) -> ServingTemplate | None:
        """How a conversation is written; None if the model has no template."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text."""
        ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a mark rather than text."""
        ...

    def id_to_token(self, token_id: int) -> str | None:
        """A token's name in the vocabulary; None if there is no such token."""
        ...

    def token_to_id(self, token: str) -> int | None:
        """The id of a name in the vocabulary, or None."""
        ...


class ServingEngine(Protocol):
    """What is needed of an engine; ``AsyncEngine`` has it."""

    @property
    def tokenizer(self) -> ServingTokenizer | None:
        """The model's; None if it has none."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus answer, in tokens."""
        ...

    @property
    def is_dead(self) -> bool:
        """Whether every request fails."""
        ...

    @property
    def busy_s(self) -> float:
        """Seconds since the engine last made progress while it had work; 0 while it is idle."""
        ...

    def watch(self, seen: Callable[[Sequence[TokenOutput]], None]) -> None:
        """Call ``seen`` with all tokens as they come."""
        ...

    async def give_back_memory(self) -> int:
        """Drop what is cached; the bytes that the system got back."""
        ...

    @property
    def default_sampling_params(self) -> SamplingParams:
        """What the model's authors recommend."""
        ...

    def stats(self) -> EngineStats:
        """Counters of this moment."""
        ...

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Answers as they grow. Leaving the iteration drops the request."""
        ...

    async def embed(
        self,
        prompt: Any,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> EmbeddingRequestOutput:
        """The vector of a prompt. Cancelling drops the request."""
        ...


class ChatEngine(ServingEngine, Protocol):
    """An engine whose answers in chats can be read; ``ServedEngine`` is one."""

    answer_format: AnswerFormat
    """How the model writes thoughts, words and calls."""


@dataclass(frozen=True)
class Common:
    """What both kinds of request have.

    model: name asked for, or None. priority: smallest first, if the engine is set up so. cache_salt:
    only requests with the same one share cached beginnings. include_usage: end a stream with usage;
    continuous_usage: put it into every piece. return_token_ids: put token ids beside texts.
    """

    model: str | None
    sampling: SamplingParams
    stream: bool
    include_usage: bool
    continuous_usage: bool
    priority: int
    cache_salt: str | None
    return_token_ids: bool


@dataclass(frozen=True)
class ChatRequest:
    """Body of /v1/chat/completions.

    options: further arguments of the chat template. tools: those that may be called; None if none may.
    include_reasoning: whether the client wants to read thoughts.
    """

    common: Common
    messages: list[Any]
    options: dict[str, Any]
    tools: ToolUse | None
    include_reasoning: bool


def read_chat(fields: Fields, defaults: SamplingParams) -> ChatRequest:
    """Raises ApiError (400) naming the field that is wrong."""
    fields.refuse(
        ("functions", "audio", "chat_template", "web_search_options", "truncate_prompt_tokens")
    )
    fields.refuse(("function_call",), (None, "none", "auto"))
    fields.refuse(("modalities",), (None, [], ["text"]))
    messages = read_messages(fields)
    tools = read_tool_use(fields)
    max_tokens = fields.integer("max_completion_tokens", minimum=1)
    if max_tokens is None:
        max_tokens = fields.integer("max_tokens", minimum=1)
    top_logprobs = fields.integer("top_logprobs", minimum=0)
    if top_logprobs and not fields.flag("logprobs"):
        raise fields.wrong("top_logprobs", "needs logprobs set to true")
    logprobs = (top_logprobs or 0) if fields.flag("logprobs") else None
    sampling = read_sampling(
        fields, defaults, max_tokens=max_tokens, logprobs=logprobs, stream=fields.flag("stream")
    )
    continues = fields.flag("continue_final_message")
    options: dict[str, Any] = dict(fields.object("chat_template_kwargs") or {})
    taken = {"messages", "tools", "template", "documents"} & options.keys()
    if taken:
        raise fields.wrong("chat_template_kwargs", f"must not hold {', '.join(sorted(taken))}")
    options |= {
        "tools": None if fields.any("tool_choice") == "none" else fields.array("tools"),
        "documents": fields.array("documents"),
        "add_generation_prompt": fields.flag("add_generation_prompt", not continues),
        "continue_final_message": continues,
    }
    return ChatRequest(
        common=read_common(fields, sampling),
        messages=messages,
        options=options,
        tools=tools,
        include_reasoning=fields.flag("include_reasoning", True),
    )


def read_common(fields: Fields, sampling: SamplingParams) -> Common:
    """Raises ApiError (400) naming the field that is wrong."""
    stream = fields.flag("stream")
    if stream and fields.has("prompt_logprobs"):
        raise fields.wrong("prompt_logprobs", "can't be streamed; leave out stream")
    stream_options = fields.object("stream_options")
    if stream_options is not None and not stream:
        raise fields.wrong("stream_options", "needs stream set to true")
    return Common(
        model=fields.text("model"),
        sampling=sampling,
        stream=stream,
        include_usage=fields.section("stream_options").flag("include_usage"),
        continuous_usage=fields.section("stream_options").flag("continuous_usage_stats"),
        priority=fields.integer("priority") or 0,
        cache_salt=fields.text("cache_salt"),
        return_token_ids=fields.flag("return_token_ids"),
    )


def read_prompts(
    fields: Fields, name: str = "prompt", most: int = MAX_PROMPTS, *, may_be_empty: bool = False
) -> tuple[Prompt, ...]:
    """One text, several, one list of token ids, or several. Raises ApiError (400)."""
    value = fields.any(name)
    if value is None:
        raise fields.wrong(name, "is missing")
    alone = _prompt(value)
    several = [_prompt(entry) for entry in value] if isinstance(value, list) else []
    found = [alone] if alone is not None else several
    prompts = [prompt for prompt in found if prompt is not None]
    if not prompts or len(prompts) < len(found):
        raise fields.wrong(name, "must be a string, a list of token ids, or a list of those")
    if len(prompts) > most:
        raise fields.wrong(name, f"must be at most {most} prompts")
    if not may_be_empty and any(not prompt for prompt in prompts):
        raise fields.wrong(name, "must not be empty")
    return tuple(prompts)


def _prompt(value: Any) -> Prompt | None:
    """A text or token ids; None if it is neither."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        return None
    numbers = [number for entry in value if (number := whole(entry)) is not None]
    return numbers if len(numbers) == len(value) else None


def check_model(asked: str | None, names: Sequence[str]) -> str:
    """The model's name for the answer. Raises ApiError (404) if another one is asked for."""
    if asked is None or asked == "":
        return names[0]
    if asked not in names:
        raise ApiError(
            f"there is no model {asked!r} here; this server has {', '.join(names)}",
            status=404,
            kind="not_found_error",
            param="model",
            code="model_not_found",
        )
    return asked
