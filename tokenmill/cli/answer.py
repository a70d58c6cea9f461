"""Getting one answer from an engine, as it is written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tokenmill.cli.figures import Figures
from tokenmill.errors import RequestError

if TYPE_CHECKING:
    from tokenmill.engine.front import Prompt, TokensPrompt
    from tokenmill.engine.outputs import RequestOutput
    from tokenmill.engine.sampling_params import SamplingParams
    from tokenmill.tokenizer import Tokenizer


class Generator(Protocol):
    """What is needed of an engine."""

    def generate(self, prompt: Prompt, sampling_params: SamplingParams) -> AsyncIterator[RequestOutput]:
        """Answers as they grow."""
        ...


@dataclass
class Answer:
    """What has come so far; after an interruption that is what there is."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    figures: Figures | None = None


async def stream_answer(
    engine: Generator,
    prompt: Prompt,
    params: SamplingParams,
    answer: Answer,
    show: Callable[[str], None],
) -> None:
    """Fill ``answer``, and show its text as it comes. ``params.output_kind`` must be DELTA."""
    outputs: Any = engine.generate(prompt, params)
    async with aclosing(outputs):
        async for out in outputs:
            part = out.outputs[0]
            answer.token_ids += part.token_ids
            answer.finish_reason = part.finish_reason
            if part.text:
                answer.text += part.text
                show(part.text)
            answer.figures = Figures.of(
                len(out.prompt_token_ids),
                out.num_cached_tokens or 0,
                len(answer.token_ids),
                out.metrics,
            )


def chat_prompt(
    tokenizer: Tokenizer | None, messages: Sequence[Mapping[str, Any]], model: str
) -> TokensPrompt:
    """A conversation as the model's chat template writes it.

    Raises RequestError if the model has no template, or if that refuses the messages.
    """
    if tokenizer is None or tokenizer.chat_template is None:
        raise RequestError(
            f"{model} has no chat template (it is a base model); use 'tokenmill run {model} PROMPT'"
        )
    text = tokenizer.chat_template.render(messages)
    # The template has written whatever begins a text.
    return {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}
