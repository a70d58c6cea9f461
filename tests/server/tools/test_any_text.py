"""Whatever a model writes: parsers never fail, and pieces tell what the whole does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.tools.reading import joined, read
from tokenmill.server.answer_format import AnswerFormat, Begun
from tokenmill.server.reasoning import Reasoning
from tokenmill.server.tools import deepseek, glm, harmony, kimi, mistral, qwen3_coder
from tokenmill.server.tools.families import FAMILIES
from tokenmill.server.tools.harmony import Harmony
from tokenmill.server.tools.output import Arguments, Call

BITS = (
    *deepseek.DeepSeek.marks, *glm.Glm.marks, *harmony.Harmony.marks, *kimi.Kimi.marks,
    *mistral.Mistral.marks, qwen3_coder.FUNCTION, qwen3_coder.FUNCTION_END, qwen3_coder.PARAMETER,
    qwen3_coder.PARAMETER_END, "<think>", "</think>", "<|python_tag|>", "<|python_start|>",
    '{"name": "get_weather", "arguments": {"city": "Ro', '"}}', '{"name": ', '"get_weather"', "null",
    "[", "]", "{", "}", "(", ")", ",", ":", ";", '"', "'", "\\", "\n", " ", "=", ">", "<", "1", "é",
    "get_weather", "city", "days", "time.now", "function", "```json", "analysis", "commentary to=f",
)  # fmt: skip


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A text, and the pieces in which it comes."""
    text = "".join(draw(st.lists(st.sampled_from(BITS), max_size=14)))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=8)))
    return text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(texts(), st.sampled_from(FAMILIES), st.booleans())
def test_pieces_tell_what_the_whole_tells(
    divided: tuple[str, list[str]], family: type, thinking: bool
) -> None:
    text, pieces = divided
    reasoning = None if family is Harmony else Reasoning("<think>", "</think>")
    form, begun = AnswerFormat(family(), reasoning), Begun(thinking=thinking)
    parts = read(form, pieces, begun)
    assert joined(parts) == joined(read(form, [text], begun))
    assert joined(parts) == joined(read(form, list(text), begun))
    calls = [part for part in parts if isinstance(part, Call | Arguments)]
    assert not calls or isinstance(calls[0], Call)
