from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import CliEngine
from tokenmill.cli import main
from tokenmill.engine.sampling_params import SamplingParams


def test_text_and_figures(engine: CliEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fake", "abc", "--max-tokens", "4"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "abca\n"
    assert captured.err.startswith("prompt 3 tokens, 1 cached, ")
    assert "generated 4 tokens" in captured.err
    assert "time to first token" in captured.err
    assert captured.err.count("\n") == 1
    assert engine.is_shut_down


def test_json(engine: CliEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fake", "ab", "--max-tokens", "3", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    result = json.loads(captured.out)
    assert result["text"] == "aba"
    assert result["token_ids"] == [97, 98, 97]
    assert result["finish_reason"] == "length"
    assert result["usage"]["prompt_tokens"] == 2
    assert result["usage"]["completion_tokens"] == 3
    assert result["usage"]["total_tokens"] == 5
    assert set(result["timing"]) == {"load_s", "ttft_s", "total_s", "prompt_tok_s", "generated_tok_s"}


def test_the_chat_template_is_used(engine: CliEngine) -> None:
    main(["run", "fake", "ab", "--max-tokens", "1"])
    main(["run", "fake", "ab", "--max-tokens", "1", "--raw"])
    assert [asked.prompt for asked in engine.asked] == [
        {"prompt": "ab", "prompt_token_ids": [97, 98]},
        "ab",
    ]


@pytest.mark.parametrize(
    "argv",
    [
        ["--raw", "fake", "ab", "--max-tokens", "1"],
        ["fake", "--raw", "ab", "--max-tokens", "1"],
        ["fake", "--raw", "--max-tokens", "1", "ab"],
        ["--max-tokens", "1", "fake", "--raw", "ab"],
        ["--max-tokens=1", "--raw", "fake", "--", "ab"],
    ],
)
def test_options_may_stand_anywhere(engine: CliEngine, argv: list[str]) -> None:
    assert main(["run", *argv]) == 0
    assert engine.asked[0].prompt == "ab"


def test_a_prompt_that_looks_like_an_option(engine: CliEngine) -> None:
    assert main(["run", "fake", "--raw", "--max-tokens", "1", "--", "--ab"]) == 0
    assert engine.asked[0].prompt == "--ab"


def test_a_model_without_template(engine: CliEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.has_template = False
    assert main(["run", "fake", "ab", "--max-tokens", "1"]) == 0
    assert engine.asked[0].prompt == "ab"
    capsys.readouterr()
    assert main(["run", "fake", "ab", "--system", "be kind"]) == 1
    assert "no chat template" in capsys.readouterr().err


def test_sampling_options(engine: CliEngine) -> None:
    argv = "run fake ab --max-tokens 5 --temperature 0.5 --top-p 0.9 --top-k 4 --min-p 0.1 --seed 3 "
    argv += "--repetition-penalty 1.2 --stop x --stop y --ignore-eos"
    assert main(argv.split()) == 0
    params = engine.asked[0].params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (5, 0.5, 0.9, 4)
    assert (params.min_p, params.seed, params.repetition_penalty) == (0.1, 3, 1.2)
    assert (params.stop, params.ignore_eos) == (("x", "y"), True)


def test_defaults_are_what_the_model_recommends(engine: CliEngine) -> None:
    engine.default_sampling_params = SamplingParams(temperature=0.3, top_k=20)
    assert main(["run", "fake", "ab", "--top-k", "5"]) == 0
    params = engine.asked[0].params
    assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.3, 5, 1.0, 512)


@pytest.mark.parametrize("argument", [["-"], []])
def test_a_prompt_from_a_pipe(engine: CliEngine, argument: list[str], pipe: Any) -> None:
    pipe("ä\n".encode() + b"\xff")
    assert main(["run", "fake", *argument, "--max-tokens", "1", "--raw"]) == 0
    assert engine.asked[0].prompt == "ä\n\ufffd"


@pytest.mark.usefixtures("no_engine")
def test_no_prompt(
    monkeypatch: pytest.MonkeyPatch, pipe: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(b" \n")
    assert main(["run", "fake"]) == 2
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert main(["run", "fake"]) == 2
    assert "no prompt was given" in capsys.readouterr().err


def test_a_prompt_that_is_refused(engine: CliEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fake", "a!"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "tokenmill: error: temperature of this prompt is too high\n"
    assert engine.is_shut_down


def test_an_engine_that_dies_has_shown_what_there_was(
    engine: CliEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "fake", "ab?"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "ab?\n"
    assert captured.err == "tokenmill: error: the engine stopped\n"
