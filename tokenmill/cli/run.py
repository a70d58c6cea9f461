"""``tokenmill run``: one completion."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

from tokenmill.cli import options
from tokenmill.cli.figures import print_dim
from tokenmill.cli.libraries import load_libraries
from tokenmill.cli.usage import UsageError

if TYPE_CHECKING:
    from tokenmill.config import EngineConfig
    from tokenmill.engine.async_engine import AsyncEngine
    from tokenmill.engine.front import Prompt

EPILOG = """\
The text goes to stdout as it is written, the line of figures to stderr.

examples:
  tokenmill run demo "Write a haiku about rain." --seed 1
  tokenmill run demo --raw "Once upon a time" --max-tokens 40 --temperature 0
  cat letter.txt | tokenmill run demo --system "Summarise the letter in one sentence." -
  tokenmill run demo "Name three colours." --json | python3 -m json.tool
"""


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "run",
        parents=[common],
        help="answer one prompt",
        description="Answer one prompt, written through the model's chat template if it has one.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_model(parser)
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        nargs="?",
        help="the prompt; '-' or nothing reads it from a pipe",
    )
    parser.add_argument("--system", metavar="TEXT", help="system message before the prompt")
    parser.add_argument(
        "--raw", action="store_true", help="continue the prompt, without a chat template"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one object instead of streaming text"
    )
    options.add_sampling_options(parser, max_tokens=512)
    options.add_engine_options(parser, max_num_seqs=1)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.raw and args.system is not None:
        raise UsageError("--system needs a chat template, so it can't go with --raw")
    text = read_prompt(args.prompt)
    config = options.engine_config(args)
    from tokenmill.engine.sampling_params import SamplingParams

    options.sampling_params(args, SamplingParams())  # wrong values are said before the model is loaded
    load_libraries()
    return _run(args, config, text)


def _run(args: argparse.Namespace, config: EngineConfig, text: str) -> int:
    from tokenmill.engine.async_engine import AsyncEngine

    engine = AsyncEngine.from_config(config)
    try:
        return _answer(args, engine, _prompt(args, engine, text))
    finally:
        engine.shutdown()


def read_prompt(argument: str | None) -> str:
    """The prompt: as given, or from stdin. Raises UsageError if there is none."""
    if argument is not None and argument != "-":
        text = argument
    elif argument is None and sys.stdin.isatty():
        raise UsageError("no prompt was given; name one, or pipe it in")
    else:
        text = sys.stdin.buffer.read().decode(errors="replace")
    if not text.strip():
        raise UsageError("the prompt is empty")
    return text


def _prompt(args: argparse.Namespace, engine: AsyncEngine, text: str) -> Prompt:
    from tokenmill.cli.answer import chat_prompt

    has_template = engine.tokenizer is not None and engine.tokenizer.chat_template is not None
    if args.raw or (not has_template and args.system is None):
        return text
    messages = [{"role": "user", "content": text}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": args.system})
    return chat_prompt(engine.tokenizer, messages, args.model)


def _answer(args: argparse.Namespace, engine: AsyncEngine, prompt: Prompt) -> int:
    from tokenmill.cli.answer import Answer, stream_answer

    params = options.sampling_params(args, engine.default_sampling_params)
    answer = Answer()
    try:
        asyncio.run(
            stream_answer(engine, prompt, params, answer, (lambda text: None) if args.json else show)
        )
    finally:
        if not args.json and answer.text and not answer.text.endswith("\n"):
            show("\n")
    assert answer.figures is not None
    if args.json:
        load_s = engine.built.load_s if engine.built else None
        result = {
            "model": args.model,
            "text": answer.text,
            "token_ids": answer.token_ids,
            "finish_reason": answer.finish_reason,
            "usage": answer.figures.usage(),
            "timing": {"load_s": load_s, **answer.figures.timing()},
        }
        print(json.dumps(result, ensure_ascii=False))
    else:
        print_dim(answer.figures.line())
    return 0


def show(text: str) -> None:
    """Write to stdout at once, whatever characters the terminal lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
