"""``tokenmill serve``: the HTTP server."""

from __future__ import annotations

import argparse
import socket
import sys
from typing import TYPE_CHECKING, Any

from tokenmill.cli import options
from tokenmill.cli.libraries import load_libraries
from tokenmill.cli.usage import port, positive, size
from tokenmill.errors import ConfigError

if TYPE_CHECKING:
    from tokenmill.config import EngineConfig
    from tokenmill.engine.async_engine import AsyncEngine

EPILOG = """\
Serves the OpenAI protocol: /v1/models, /v1/completions, /v1/chat/completions, and /health.
SIGTERM or Ctrl-C lets running requests finish first; a second Ctrl-C drops them.

examples:
  tokenmill serve demo
  tokenmill serve demo --host 0.0.0.0 --port 9000 --served-model-name my-model
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}'
"""


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "serve",
        parents=[common],
        help="serve a model over HTTP",
        description="Serve a model over HTTP, with the OpenAI protocol.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_model(parser)
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: %(default)s, this machine only)",
    )
    group.add_argument(
        "--port", type=port, default=8000, help="port; 0 takes a free one (default: 8000)"
    )
    group.add_argument(
        "--served-model-name",
        action="append",
        metavar="NAME",
        help="name that clients use (default: MODEL); may be repeated",
    )
    group.add_argument(
        "--shutdown-timeout",
        type=positive,
        default=30,
        metavar="SECONDS",
        help="how long running requests may take to finish at the end (default: %(default)s)",
    )
    group.add_argument(
        "--max-body",
        type=size,
        default=16 << 20,
        metavar="SIZE",
        help="largest request body (default: 16M)",
    )
    group.add_argument("--access-log", action="store_true", help="log every request")
    options.add_engine_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    config = options.engine_config(args)
    listener = listen(args.host, args.port)
    with listener:
        load_libraries()
        _serve(args, config, listener)
    print("stopped", file=sys.stderr)
    return 0


def _serve(args: argparse.Namespace, config: EngineConfig, listener: socket.socket) -> None:
    from tokenmill.engine.async_engine import AsyncEngine
    from tokenmill.server.app import create_app
    from tokenmill.server.process import serve

    engine = AsyncEngine.from_config(config)
    try:
        names = tuple(args.served_model_name or (args.model,))
        app = create_app(engine, model_names=names, max_body_bytes=args.max_body)
        for line in summary(engine, names, listener):
            print(line, file=sys.stderr)
        serve(
            app,
            listener,
            drop=engine.shutdown,
            drain_s=args.shutdown_timeout,
            access_log=args.access_log,
        )
    finally:
        engine.shutdown()


def listen(host: str, number: int) -> socket.socket:
    """A bound socket, so that a port that is taken is known before the model is loaded.

    Raises ConfigError if the address can't be used.
    """
    try:
        found = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            f"cannot listen on {host} port {number}: {reason}; choose another --host or --port"
        ) from error
    return listener


def summary(engine: AsyncEngine, names: tuple[str, ...], listener: socket.socket) -> list[str]:
    """What is served, with what, and where."""
    lines = [f"model {', '.join(names)}, up to {engine.max_model_len} tokens"]
    built = engine.built
    if built is not None:
        threads = built.threads
        lines.append(f"loaded in {built.load_s:.1f} s; {threads.count} threads ({threads.why})")
        lines += built.operators.notes
        lines += built.memory.describe()
    host, number = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    lines.append(f"serving http://{shown}:{number}/v1 (Ctrl-C stops)")
    return lines
