"""The offline front door, over a fake model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pytest
import torch

import tokenmill
from tests.engine.fake_model import HIDDEN, Bench, prompt_of
from tests.engine.fake_text import LETTERS, LetterTokenizer, front_of
from tokenmill.engine.build import BuiltEngine
from tokenmill.engine.pooling import POOLINGS, PoolingParams
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.errors import ConfigError, EngineDeadError, RequestError, SourceError
from tokenmill.llm import LLM, list_prompts

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


class Template:
    """Writes roles and contents one after another."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, **kwargs: Any
    ) -> str:
        parts = [f"{m['role']} {m['content']} " for m in messages]
        parts += [f"{name} " for name, value in kwargs.items() if value]
        return "".join(parts) + ("assistant" if add_generation_prompt else "")


class ChatTokenizer(LetterTokenizer):
    chat_template: Template | None = Template()


def llm_of(bench: Bench, tokenizer: Any = None) -> LLM:
    nothing = cast(Any, None)
    return LLM.from_built(
        BuiltEngine(
            engine=bench.engine,
            front=front_of(bench),
            tokenizer=tokenizer,
            checkpoint=nothing,
            memory=nothing,
            operators=nothing,
            threads=nothing,
            load_s=0.0,
        )
    )


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def llm(bench: Bench) -> Iterator[LLM]:
    with llm_of(bench, ChatTokenizer()) as llm:
        yield llm
    bench.assert_all_free()


def test_is_the_packages_front_door() -> None:
    assert tokenmill.LLM is LLM
    assert tokenmill.SamplingParams is SamplingParams
    assert tokenmill.PoolingParams is PoolingParams


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [prompt_of(n, n) for n in (60, 3, 20, 7, 90, 11, 5, 33, 2, 40)]
    limits = [3, 20, 1, 9, 2, 30, 4, 5, 6, 7]
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in limits]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [out.prompt_token_ids for out in outputs] == prompts
    assert [len(out.outputs[0].token_ids) for out in outputs] == limits
    assert all(out.finished for out in outputs)
    for prompt, own, out in zip(prompts, params, outputs, strict=True):
        assert llm.generate(prompt, own, use_tqdm=False)[0].outputs == out.outputs


def test_prompts_of_every_form(llm: LLM) -> None:
    ids = LetterTokenizer().encode("abc")
    forms: list[Any] = [
        "abc", ["abc"], ids, [ids], {"prompt": "abc"}, {"prompt_token_ids": ids},
        [{"prompt": "abc"}], ({"prompt_token_ids": ids},),
    ]  # fmt: skip
    results = [llm.generate(form, GREEDY, use_tqdm=False) for form in forms]
    assert all(len(result) == 1 for result in results)
    assert len({tuple(result[0].outputs[0].token_ids) for result in results}) == 1
    assert [r[0].prompt for r in results] == ["abc", "abc", None, None, "abc", None, "abc", None]
    assert llm.generate([], GREEDY, use_tqdm=False) == []
    assert list_prompts(["a", [1, 2]]) == ["a", [1, 2]]


def test_text_is_that_of_the_tokens(llm: LLM) -> None:
    answer = llm.generate("abc", GREEDY, use_tqdm=False)[0].outputs[0]
    assert answer.text == "".join(LETTERS[t % 27] for t in answer.token_ids)
    assert len(answer.text) == 8
    silent = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    quiet = llm.generate("abc", silent, use_tqdm=False)[0].outputs[0]
    assert (quiet.text, quiet.token_ids) == ("", answer.token_ids)


def test_a_stop_text_and_n_answers(llm: LLM) -> None:
    long = SamplingParams(n=3, seed=1, max_tokens=60, ignore_eos=True)
    texts = [a.text for a in llm.generate("abc", long, use_tqdm=False)[0].outputs]
    stop = texts[0][10:12]
    stopping = SamplingParams(n=3, seed=1, max_tokens=60, ignore_eos=True, stop=stop)
    answers = llm.generate("abc", stopping, use_tqdm=False)[0].outputs
    assert [a.text for a in answers] == [text.split(stop)[0] for text in texts]
    assert answers[0].stop_reason == stop


def test_vectors_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [prompt_of(n, n) for n in (60, 3, 20, 150, 1)]
    outputs = llm.embed(prompts, use_tqdm=False)
    assert [out.prompt_token_ids for out in outputs] == prompts
    assert all(out.finished and out.outputs.hidden_size == HIDDEN for out in outputs)
    for prompt, out in zip(prompts, outputs, strict=True):
        assert llm.embed(prompt, use_tqdm=False)[0].outputs == out.outputs
    assert llm.embed([], use_tqdm=False) == []
    means = llm.embed(prompts, PoolingParams("mean", dimensions=5), use_tqdm=False)
    assert {len(out.outputs.embedding) for out in means} == {5}
    assert llm.embed("abc", use_tqdm=False)[0].prompt_token_ids == LetterTokenizer().encode("abc")


def test_scores(llm: LLM) -> None:
    same, other = (out.outputs.score for out in llm.score("abc", ["abc", "xyz"], use_tqdm=False))
    assert same == pytest.approx(1)
    a, b = (torch.tensor(v.outputs.embedding) for v in llm.embed(["abc", "xyz"], use_tqdm=False))
    assert other == pytest.approx(float(a @ b))
    pairs = llm.score(["abc", "xyz"], ["xyz", "xyz"], use_tqdm=False)
    assert [p.outputs.score for p in pairs] == pytest.approx([other, 1])
    assert pairs[0].prompt_token_ids == LetterTokenizer().encode("abcxyz")
    with pytest.raises(RequestError, match="2 texts on one side and 3 on the other"):
        llm.score(["a", "b"], ["a", "b", "c"], use_tqdm=False)


def test_a_vector_that_cannot_be_made_harms_nothing(llm: LLM) -> None:
    with pytest.raises(RequestError, match="dimensions is 99"):
        llm.embed(["abc", "de"], PoolingParams(dimensions=99), use_tqdm=False)
    with pytest.raises(RequestError, match="2 prompts, but 1 pooling_params"):
        llm.embed(["abc", "de"], [PoolingParams()], use_tqdm=False)
    assert llm.embed("abc", use_tqdm=False)[0].finished


def test_chat(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    one = llm.chat(messages, GREEDY, use_tqdm=False)
    assert [out.prompt for out in one] == ["user hello assistant"]
    many = llm.chat([messages, messages], GREEDY, use_tqdm=False)
    assert [out.outputs for out in many] == [one[0].outputs] * 2
    other = llm.chat(
        messages,
        GREEDY,
        use_tqdm=False,
        tools=[{"type": "function"}],
        add_generation_prompt=False,
        chat_template_kwargs={"think": True},
    )
    assert other[0].prompt == "user hello tools think "
    assert other[0].prompt_token_ids == LetterTokenizer().encode("user hello tools think ")


def test_chat_needs_a_template(bench: Bench) -> None:
    class Plain(LetterTokenizer):
        chat_template = None

    with llm_of(bench, Plain()) as llm, pytest.raises(RequestError, match="no chat template"):
        llm.chat([{"role": "user", "content": "hello"}])
    with llm_of(bench) as llm, pytest.raises(RequestError, match="no tokenizer"):
        llm.get_tokenizer()


def test_one_bad_prompt_refuses_all_and_harms_nothing(llm: LLM) -> None:
    with pytest.raises(RequestError, match="no tokens"):
        llm.generate(["abc", ""], GREEDY, use_tqdm=False)
    with pytest.raises(RequestError, match="2 prompts, but 1 sampling_params"):
        llm.generate(["abc", "abc"], [GREEDY], use_tqdm=False)
    with pytest.raises(RequestError, match="1 prompts, but 2 priority"):
        llm.generate("abc", GREEDY, use_tqdm=False, priority=[1, 2])
    assert len(llm.generate("abc", GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 8


def test_a_request_that_never_fits_aborts_the_rest() -> None:
    bench = Bench(num_blocks=8)
    with llm_of(bench) as llm:
        with pytest.raises(RequestError, match="cache blocks"):
            llm.generate([prompt_of(20), prompt_of(200)], GREEDY, use_tqdm=False)
        assert len(llm.generate(prompt_of(20), GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 8
    bench.assert_all_free()


def test_a_progress_bar_counts_prompts(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["abc", "de"], GREEDY)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "tokens/s" in shown
    llm.generate("abc", GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_after_shutdown_nothing_is_served(bench: Bench) -> None:
    llm = llm_of(bench)
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        llm.generate("abc", GREEDY, use_tqdm=False)


def test_an_internal_error_reaches_the_caller(bench: Bench) -> None:
    def broken(*args: Any) -> Any:
        raise ValueError("broken weights")

    bench.model.forward = broken  # type: ignore[method-assign]
    with llm_of(bench) as llm, pytest.raises(EngineDeadError, match="broken weights"):
        llm.generate("abc", GREEDY, use_tqdm=False)


def test_settings_are_checked_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs"):
        LLM("demo", max_num_seqs=0)
    with pytest.raises(SourceError, match="unknown model"):
        LLM("no-such-model")


@pytest.mark.model
def test_the_demo_model_makes_vectors() -> None:
    """Recorded native steps: the same bits alone and together, in chunks, and after hits."""
    texts = ["Paris is the capital of France. " * 9, "Water boils.", "The capital of France is Paris."]
    with LLM("demo", max_model_len=256, max_num_seqs=4, max_num_batched_tokens=256) as llm:
        alone = {
            pooling: [llm.embed(t, PoolingParams(pooling), use_tqdm=False)[0].outputs for t in texts]
            for pooling in POOLINGS
        }
        scores = [out.outputs.score for out in llm.score(texts[2], texts[:2], use_tqdm=False)]
        assert scores[0] > scores[1]
    with LLM("demo", max_model_len=256, max_num_seqs=4, max_num_batched_tokens=16) as llm:
        for _ in range(2):
            for pooling in POOLINGS:
                together = llm.embed(texts, PoolingParams(pooling), use_tqdm=False)
                assert [out.outputs for out in together] == alone[pooling]
        assert [out.num_cached_tokens for out in together] == [0, 0, 0]
        again = llm.embed(texts, PoolingParams("last"), use_tqdm=False)
        assert again[0].num_cached_tokens > 0


@pytest.mark.model
def test_the_demo_model_answers() -> None:
    """From the name of a model to text: with a template, batched, chunked, and found in the cache."""
    greedy = SamplingParams(temperature=0.0, max_tokens=16, logprobs=1)
    prompts = ["The capital of France is", "Water is made of", "One, two, three,"]
    with LLM("demo", max_model_len=512, max_num_seqs=4, max_num_batched_tokens=64) as llm:
        alone = [llm.generate(prompt, greedy, use_tqdm=False)[0] for prompt in prompts]
        assert alone[0].outputs[0].text.startswith(" Paris")
        together = llm.generate(prompts, greedy, use_tqdm=False)
        assert [out.outputs for out in together] == [out.outputs for out in alone]

        question = [{"role": "user", "content": "What is the capital of France? " * 20}]
        first = llm.chat(question, greedy, use_tqdm=False)[0]
        again = llm.chat(question, greedy, use_tqdm=False)[0]
        assert first.num_cached_tokens == 0
        assert again.num_cached_tokens == (len(first.prompt_token_ids) - 1) // 16 * 16
        assert again.outputs == first.outputs
        assert "Paris" in first.outputs[0].text

        tokens = first.outputs[0].token_ids
        assert llm.get_tokenizer().decode(tokens) == first.outputs[0].text
        stopping = SamplingParams(temperature=0.0, max_tokens=16, stop="Paris")
        stopped = llm.chat(question, stopping, use_tqdm=False)[0].outputs[0]
        assert stopped.text == first.outputs[0].text.split("Paris")[0]
        assert stopped.stop_reason == "Paris"
