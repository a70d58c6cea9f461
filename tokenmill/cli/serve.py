"""``tokenmill serve``: the HTTP server."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from tokenmill.cli import options, serve_options
from tokenmill.cli.libraries import load_libraries
from tokenmill.errors import ConfigError

if TYPE_CHECKING:
    from tokenmill.config import EngineConfig, ServerConfig
    from tokenmill.engine.async_engine import AsyncEngine

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

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
    serve_options.add_server_options(parser)
    options.add_engine_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    config = options.engine_config(args)
    server = serve_options.server_config(args)
    if server.log_prompts or server.access_log:
        logging.getLogger("tokenmill.requests").setLevel(logging.INFO)
    for warning in serve_options.warnings(args.host, server):
        print(f"warning: {warning}", file=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
    listener = listen(args.host, args.port)
    with listener, leaving_on_sigterm():
        load_libraries()
        healthy = _serve(args, config, server, listener)
    print("stopped" if healthy else "stopped: the engine died", file=sys.stderr)
    return 0 if healthy else 1


def _serve(
    args: argparse.Namespace, config: EngineConfig, server: ServerConfig, listener: socket.socket
) -> bool:
    from tokenmill.engine.async_engine import AsyncEngine
    from tokenmill.server.app import create_app
    from tokenmill.server.controls import Controls
    from tokenmill.server.process import serve

    controls = Controls.of(server)
    engine = AsyncEngine.from_config(config)
    try:
        names = tuple(args.served_model_name or (args.model,))
        app = create_app(engine, model_names=names, config=server, controls=controls)
        for line in summary(engine, names, server, address(listener, server)):
            print(line, file=sys.stderr)
        return serve(
            app,
            listener,
            config=server,
            controls=controls,
            drop=engine.shutdown,
            is_dead=lambda: engine.is_dead,
        )
    finally:
        engine.shutdown()


@contextmanager
def leaving_on_sigterm() -> Iterator[None]:
    """While the model is loaded. By default the first process of a container ignores SIGTERM."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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


def address(listener: socket.socket, server: ServerConfig) -> str:
    """Where the server is, as a URL."""
    host, number = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if server.ssl_certfile else 'http'}://{shown}:{number}"


def summary(engine: AsyncEngine, names: tuple[str, ...], server: ServerConfig, url: str) -> list[str]:
    """What is served, with what, and where; and a first request to try."""
    rows = [("model", f"{', '.join(names)}, up to {engine.max_model_len} tokens")]
    built = engine.built
    if built is not None:
        threads = built.threads
        rows.append(("threads", f"{threads.count} ({threads.why}); loaded in {built.load_s:.1f} s"))
        rows += [("operators", note) for note in built.operators.notes]
        rows += [("memory", line) for line in built.memory.describe()]
    locked = bool(server.api_keys or server.api_key_file)
    rows.append(("access", "with an API key" if locked else "without an API key"))
    rows.append(("address", f"{url}/v1 (Ctrl-C stops)"))
    if server.web:
        rows.append(("web page", url))
    key = " -H 'Authorization: Bearer '$TOKENMILL_API_KEY" if locked else ""
    body = json.dumps({"model": names[0], "messages": [{"role": "user", "content": "Hello"}]})
    quoted = shlex.quote(body)
    lines = [f"{name:<10}{text}" for name, text in rows]
    return [
        *lines,
        "try:",
        f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d {quoted}",
    ]
