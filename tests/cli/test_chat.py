from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import CliEngine
from tests.server.fake_engine import FakeTemplate
from tokenmill.cli import chat, main


class Transcript(FakeTemplate):
    """Shows the whole conversation to the model."""

    def render(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        return "|".join(f"{m['role'][0]}:{m['content']}" for m in messages)


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, engine: CliEngine) -> Any:
    """Has a chat with these lines; a BaseException among them is raised instead."""
    monkeypatch.setattr("tests.server.fake_engine.FakeTemplate", Transcript)

    def run(*lines: str | BaseException, options: tuple[str, ...] = ()) -> int:
        source: Iterator[str | BaseException] = iter(lines)

        def read(prompt: str = "") -> str:
            line = next(source, EOFError())
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", read)
        return main(["chat", "fake", "--max-tokens", "3", *options])

    return run


def prompts(engine: CliEngine) -> list[str]:
    return [asked.prompt["prompt"] for asked in engine.asked]


def test_history(say: Any, engine: CliEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert say("one", "", "two") == 0
    assert prompts(engine) == ["u:one", "u:one|a:u:o|u:two"]
    captured = capsys.readouterr()
    assert captured.out == "u:o\nu:o\n"
    assert captured.err.count("time to first token") == 2
    assert engine.is_shut_down


def test_reset(say: Any, engine: CliEngine) -> None:
    say("one", "/reset", "two")
    assert prompts(engine) == ["u:one", "u:two"]


def test_system(say: Any, engine: CliEngine, capsys: pytest.CaptureFixture[str]) -> None:
    say("one", "/system be kind", "two", "/reset", "three", "/system", options=("--system", "start"))
    assert prompts(engine) == ["s:start|u:one", "s:be kind|u:two", "s:be kind|u:three"]
    assert capsys.readouterr().err.endswith("be kind\n")


@pytest.mark.parametrize("word", ["/exit", "/quit"])
def test_leaving(say: Any, engine: CliEngine, word: str) -> None:
    assert say(word, "one") == 0
    assert engine.asked == []


def test_help_and_unknown_commands(say: Any, capsys: pytest.CaptureFixture[str]) -> None:
    say("/help", "/dance")
    err = capsys.readouterr().err
    assert chat.HELP in err
    assert "no command /dance" in err


def test_interrupt_at_the_prompt(
    say: Any, engine: CliEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(KeyboardInterrupt(), "one") == 0
    assert prompts(engine) == ["u:one"]
    assert "Ctrl-D or /exit leaves" in capsys.readouterr().err


def test_interrupt_stops_only_the_answer(
    say: Any, engine: CliEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        if len(shown) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(chat, "show", show)
    assert say("one", "two") == 0
    # What was written before the interruption is remembered, and the request was dropped.
    assert prompts(engine) == ["u:one", "u:one|a:u:|u:two"]
    assert [asked.ended for asked in engine.asked] == ["dropped", "finished"]
    assert "stopped" in capsys.readouterr().err


def test_a_message_that_is_refused_is_forgotten(
    say: Any, engine: CliEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say("no!", "one") == 0
    assert prompts(engine) == ["u:no!", "u:one"]
    assert "/reset starts anew" in capsys.readouterr().err


def test_an_engine_that_dies(say: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert say("what?", "one", options=("--max-tokens", "9")) == 1
    assert capsys.readouterr().err.endswith("tokenmill: error: the engine stopped\n")


def test_a_model_without_template(
    say: Any, engine: CliEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.has_template = False
    assert say("one") == 1
    assert "use 'tokenmill run fake PROMPT'" in capsys.readouterr().err
    assert engine.is_shut_down
