"""Whether a form can be compiled at all within a few seconds, found out by a process of its own.

Some schemas and regular expressions take the library for ever, and native code can't be interrupted. So
each form that is new is compiled in a small process first, which its alarm clock ends if it takes too
long. Its vocabulary is bytes, which is enough for that.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO

from tokenmill.engine.structured_outputs import StructuredOutputs

CHECK_S = 3
"""Longest time for compiling a form; far more than what sensible ones take."""

MEMORY_BYTES = 2 << 30
"""Most memory of the process."""

REMEMBERED = 256
"""Forms that took too long are not tried again."""

TOO_LONG = "it is too complex"


class FormChecker:
    """Runs the process while it is needed. Safe to use from several threads.

    vocab_size: of the model. special: names of special tokens by id, which grammars may mention.
    seconds: for each form.
    """

    def __init__(self, vocab_size: int, special: Mapping[int, str], seconds: int = CHECK_S) -> None:
        self._settings = json.dumps(
            {"size": vocab_size, "special": [*special.items()], "seconds": seconds}
        )
        self._process: subprocess.Popen[str] | None = None
        self._too_long: OrderedDict[StructuredOutputs, None] = OrderedDict()
        self._lock = threading.Lock()

    def problem(self, form: StructuredOutputs) -> str | None:
        """Why the form can't be used; None if it can. Takes seconds at most."""
        with self._lock:
            if form in self._too_long:
                return TOO_LONG
            try:
                answer = self._ask(json.dumps(asdict(form)))
            except (BrokenPipeError, ConnectionError):
                answer = ""
            if answer:
                problem: str | None = json.loads(answer)
                return problem
            self._end()
            self._too_long[form] = None
            if len(self._too_long) > REMEMBERED:
                self._too_long.popitem(last=False)
            return TOO_LONG

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with process:  # closes its pipes and waits for it
                pass

    def _ask(self, question: str) -> str:
        process = self._process
        if process is None or process.poll() is not None:
            self._end()
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                # Signals of the terminal are for the server.
                start_new_session=True,
            )
            _write_line(process, self._settings)
        _write_line(process, question)
        assert process.stdout is not None
        return process.stdout.readline()


def _write_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


class _Bytes:
    """A vocabulary of bytes, as large as the model's, with its special tokens."""

    bos_token_id = None

    def __init__(self, size: int, special: Mapping[int, str]) -> None:
        plain = [token for token in range(size) if token not in special]
        self.tokens = [b""] * size
        for value, token in enumerate(plain[:256]):
            self.tokens[token] = bytes([value])
        for token, name in special.items():
            self.tokens[token] = name.encode()
        self.special_token_ids = sorted(special)
        self.eos_token_id = self.special_token_ids[0]
        self._ids = plain

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return [self._ids[value] for value in data]


def _serve(questions: IO[str], answers: IO[str]) -> None:
    """What the process does: reads forms, a line each, and answers with problems."""
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    from tokenmill.engine.grammar_text import GrammarError, grammar_limits, grammar_of, guarded, summary

    settings = json.loads(questions.readline())
    # One beyond the vocabulary ends answers, whatever the model's tokens are.
    size = settings["size"]
    special = {**{token: name for token, name in settings["special"] if token < size}, size: "<end>"}
    tokens = LLTokenizer(TokenizerWrapper(_Bytes(size + 1, special)), n_vocab=size + 1, eos_token=size)
    for line in questions:
        signal.alarm(settings["seconds"])
        problem: str | None = None
        try:
            grammar = grammar_of(StructuredOutputs(**json.loads(line)))
            found = guarded(LLMatcher.validate_grammar, grammar, tokens, limits=grammar_limits())
            if found and not found.startswith("WARNING"):
                problem = summary(found)
            else:
                matcher = guarded(LLMatcher, tokens, grammar, log_level=0, limits=grammar_limits())
                guarded(matcher.compute_bitmask)
                problem = summary(matcher.get_error()) if matcher.is_error() else None
        except GrammarError as error:
            problem = str(error)
        signal.alarm(0)
        answers.write(json.dumps(problem) + "\n")
        answers.flush()


if __name__ == "__main__":
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    _serve(sys.stdin, sys.stdout)
