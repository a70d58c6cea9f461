"""``tokenmill chat``: a conversation at the terminal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenmill.cli import options
from tokenmill.cli.figures import print_dim
from tokenmill.cli.libraries import load_libraries
from tokenmill.cli.run import show
from tokenmill.errors import EngineDeadError, RequestError

if TYPE_CHECKING:
    from tokenmill.config import EngineConfig
    from tokenmill.engine.async_engine import AsyncEngine
    from tokenmill.engine.sampling_params import SamplingParams

HELP = """\
/help           this list
/system [TEXT]  set the system message and start anew; without TEXT, show it
/reset          forget the conversation, keep the system message
/exit           leave (Ctrl-D as well)
Ctrl-C          stop the answer that is being written"""

EPILOG = f"""\
within a chat:
{HELP}
"""


@dataclass
class History:
    """What was said. system: the system message, or None."""

    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    def messages(self) -> list[dict[str, str]]:
        """As chat templates read them."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return first + self.turns


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "chat",
        parents=[common],
        help="talk with a model at the terminal",
        description="Talk with a model. It remembers the conversation.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    options.add_sampling_options(parser, max_tokens=1024)
    options.add_engine_options(parser, max_num_seqs=1)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    config = options.engine_config(args)
    from tokenmill.engine.sampling_params import SamplingParams

    options.sampling_params(args, SamplingParams())  # wrong values are said before the model is loaded
    load_libraries()
    _chat(args, config)
    return 0


def _chat(args: argparse.Namespace, config: EngineConfig) -> None:
    from tokenmill.engine.async_engine import AsyncEngine

    engine = AsyncEngine.from_config(config)
    try:
        if engine.tokenizer is None or engine.tokenizer.chat_template is None:
            raise RequestError(
                f"{args.model} has no chat template (it is a base model); "
                f"use 'tokenmill run {args.model} PROMPT'"
            )
        params = options.sampling_params(args, engine.default_sampling_params)
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  line editing and history for input()
        print_dim(f"{args.model}, up to {engine.max_model_len} tokens. /help lists commands.")
        converse(engine, params, History(args.system), args.model)
    finally:
        engine.shutdown()


def converse(engine: AsyncEngine, params: SamplingParams, history: History, model: str) -> None:
    """Until the person leaves."""
    with asyncio.Runner() as runner:
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                if sys.stdin.isatty():
                    print()
                return
            except KeyboardInterrupt:
                print_dim("\nCtrl-D or /exit leaves")
                continue
            if line.startswith("/"):
                if not command(line, history):
                    return
            elif line:
                reply(runner, engine, params, history, model, line)


def command(line: str, history: History) -> bool:
    """Carry out a command. False: leave."""
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    if name in ("/exit", "/quit", "/bye"):
        return False
    if name == "/help":
        print_dim(HELP)
    elif name == "/reset":
        history.turns.clear()
        print_dim("the conversation is forgotten")
    elif name == "/system" and rest:
        history.system = rest
        history.turns.clear()
        print_dim("the system message is set; the conversation starts anew")
    elif name == "/system":
        print_dim(history.system or "there is no system message")
    else:
        print_dim(f"there is no command {name}; /help lists them")
    return True


def reply(
    runner: asyncio.Runner,
    engine: AsyncEngine,
    params: SamplingParams,
    history: History,
    model: str,
    line: str,
) -> None:
    """Answer what was said. Ctrl-C ends the answer; what was written of it is remembered."""
    from tokenmill.cli.answer import Answer, chat_prompt, stream_answer

    history.turns.append({"role": "user", "content": line})
    answer, interrupted = Answer(), False
    try:
        prompt = chat_prompt(engine.tokenizer, history.messages(), model)
        runner.run(stream_answer(engine, prompt, params, answer, show))
    except KeyboardInterrupt:
        interrupted = True
    except EngineDeadError:
        raise
    except RequestError as error:
        history.turns.pop()
        print(f"tokenmill: error: {error}; /reset starts anew", file=sys.stderr)
        return
    if answer.text:
        history.turns.append({"role": "assistant", "content": answer.text})
        if not answer.text.endswith("\n"):
            show("\n")
    else:
        # Templates want turns to alternate.
        history.turns.pop()
    if interrupted:
        print_dim("stopped")
    elif answer.figures is not None:
        print_dim(answer.figures.line())
