from __future__ import annotations

import pytest

from tokenmill.tokenizer.fill_in_middle import LEADING_MARK, STYLES, FillIn, find_fill_in


class Letters:
    """A token is a character's code; marks come after them. space: SentencePiece's leading space."""

    def __init__(
        self, *marks: str, bos: int | None = None, eos: int | None = None, space: bool = False
    ):
        self._marks = {mark: 1000 + index for index, mark in enumerate(marks)}
        self._bos, self._eos = bos, eos
        self._space = space

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = [ord(letter) for letter in (" " + text if self._space and text else text)]
        if add_special_tokens:
            ids = [*([self._bos] if self._bos else []), *ids, *([self._eos] if self._eos else [])]
        return ids

    def token_to_id(self, token: str) -> int | None:
        return self._marks.get(token)


def fill_in(tokenizer: Letters) -> FillIn:
    found = find_fill_in(tokenizer)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "names",
    [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
        ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ],
)
def test_the_gap_comes_last(names: tuple[str, ...]) -> None:
    found = fill_in(Letters(*names))
    assert found.prompt("ab", "c") == [1000, 97, 98, 1001, 99, 1002]
    assert found.prompt("", "") == [1000, 1001, 1002]


def test_what_follows_may_come_first() -> None:
    assert fill_in(Letters("[PREFIX]", "[SUFFIX]", bos=1)).prompt("ab", "c") == [
        1,
        1001,
        99,
        1000,
        97,
        98,
    ]


def test_texts_begin_as_the_model_wants_it_and_do_not_end() -> None:
    tokenizer = Letters("<fim_prefix>", "<fim_suffix>", "<fim_middle>", bos=1, eos=2)
    assert fill_in(tokenizer).prompt("a", "b") == [1, 1000, 97, 1001, 98, 1002]


def test_code_llama_has_a_space_before_the_prefix_only() -> None:
    tokenizer = Letters("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>", bos=1, space=True)
    found = fill_in(tokenizer)
    assert found.prompt("a", "b") == [1, 1000, 32, 97, 1001, 98, 1002]
    assert found.prompt("a", "") == [1, 1000, 32, 97, 1001, 1002]
    assert ord(LEADING_MARK) not in found.prompt("a", "b")
    assert found.ends == (1003,)


def test_ends_are_those_of_the_vocabulary() -> None:
    names = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>", "<|endoftext|>")
    assert fill_in(Letters(*names)).ends == (1003, 1004)


def test_models_that_do_not_fill_in() -> None:
    assert find_fill_in(Letters()) is None
    assert find_fill_in(Letters("<fim_prefix>", "<fim_suffix>")) is None
    assert find_fill_in(Letters("<fim_prefix>", "<fim-suffix>", "<|fim_middle|>")) is None
    assert find_fill_in(Letters("[SUFFIX]")) is None


def test_styles_are_told_apart() -> None:
    for style in STYLES:
        names = [name for name in (style.prefix, style.suffix, style.middle) if name is not None]
        assert fill_in(Letters(*names)).style is style


@pytest.mark.model
def test_a_real_model_fills_in() -> None:
    from tokenmill import LLM, SamplingParams

    with LLM("qwen2.5-coder-0.5b", max_model_len=256, max_num_seqs=2) as llm:
        found = find_fill_in(llm.get_tokenizer())
        assert found is not None
        prompt = found.prompt("def add(a, b):\n    return a", "\n\nprint(add(1, 2))\n")
        params = SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=found.ends)
        answer = llm.generate([prompt], params, use_tqdm=False)[0].outputs[0]
    assert answer.text.startswith(" + b")
