"""Options of the server, and the settings made from them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.cli.usage import as_usage_errors, port, positive, seconds, size

if TYPE_CHECKING:
    from tokenmill.config import ServerConfig

KEY_VARIABLE = "TOKENMILL_API_KEY"


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Where the server listens, whom it serves, and how much it does for them."""
    _address(parser.add_argument_group("server"))
    _security(parser.add_argument_group("security"))
    _limits(parser.add_argument_group("limits (0 seconds: no limit)"))
    _answers(parser.add_argument_group("answers"))
    _operation(parser.add_argument_group("operation"))


def _address(group: argparse._ArgumentGroup) -> None:
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


def _security(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help=f"key that clients must show; may be repeated. Other users of this machine can see it: "
        f"better set {KEY_VARIABLE} or use --api-key-file",
    )
    group.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with one key a line; read again on SIGHUP",
    )
    group.add_argument(
        "--allowed-hosts",
        type=names,
        metavar="NAMES",
        help="host names that requests may be sent to, separated by commas; * is any (default: "
        "loopback names and --host; any if --host is 0.0.0.0)",
    )
    group.add_argument(
        "--cors-origins",
        type=names,
        default=(),
        metavar="ORIGINS",
        help="web origins whose pages may use the server, separated by commas; * is any (default: "
        "none)",
    )
    group.add_argument("--ssl-certfile", type=Path, metavar="FILE", help="PEM certificate, for TLS")
    group.add_argument("--ssl-keyfile", type=Path, metavar="FILE", help="PEM key, for TLS")


def _limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-queue",
        type=positive,
        default=256,
        metavar="N",
        help="answers that may wait; what comes on top gets a 429 (default: %(default)s)",
    )
    group.add_argument(
        "--max-requests",
        type=positive,
        default=1000,
        metavar="N",
        help="requests served at once, slow readers included (default: %(default)s)",
    )
    group.add_argument(
        "--request-timeout",
        type=seconds,
        metavar="SECONDS",
        help="longest time for an answer, waiting included (default: no limit)",
    )
    group.add_argument(
        "--body-timeout",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="longest time for sending a request (default: 60)",
    )
    group.add_argument(
        "--stall-timeout",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="longest time in which a client takes nothing of its answer (default: 60)",
    )
    group.add_argument(
        "--max-body",
        type=size,
        default=16 << 20,
        metavar="SIZE",
        help="largest request body (default: 16M)",
    )
    group.add_argument(
        "--max-stored",
        type=room,
        default=128 << 20,
        metavar="SIZE",
        help="memory for responses that later requests continue (/v1/responses); 0 keeps none "
        "(default: 128M)",
    )
    group.add_argument(
        "--max-prompt-chars",
        type=positive,
        metavar="N",
        help="longest prompt as text (default: 16 for each token of --max-model-len, at least a "
        "million)",
    )
    group.add_argument(
        "--max-n",
        type=positive,
        default=128,
        metavar="N",
        help="most answers of one request (default: %(default)s)",
    )
    group.add_argument(
        "--max-logprobs",
        type=int,
        default=20,
        metavar="N",
        help="most log-probabilities of one position (default: %(default)s)",
    )


def _answers(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tool-parser",
        type=tool_parser,
        metavar="NAME",
        help="how the model writes calls of tools, if its chat template does not tell: hermes, "
        "qwen3_coder, llama3_json, pythonic, mistral, deepseek, glm, kimi_k2 or harmony",
    )


def _operation(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--shutdown-timeout",
        type=positive,
        default=30,
        metavar="SECONDS",
        help="how long running requests may take to finish at the end (default: %(default)s)",
    )
    group.add_argument(
        "--step-timeout",
        type=positive,
        default=120,
        metavar="SECONDS",
        help="step of the engine after which /health says that it hangs (default: %(default)s)",
    )
    group.add_argument("--access-log", action="store_true", help="log a line for every request")
    group.add_argument("--log-prompts", action="store_true", help="log prompts, too")
    group.add_argument(
        "--metrics-prefix",
        default="tokenmill",
        metavar="NAME",
        help="of the names at /metrics; vllm suits dashboards made for vLLM (default: %(default)s)",
    )
    group.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="send OpenTelemetry traces there (needs tokenmill[otel])",
    )
    group.add_argument(
        "--enable-sleep", action="store_true", help="serve /sleep, /wake_up and /is_sleeping"
    )
    group.add_argument(
        "--no-web", dest="web", action="store_false", help="don't serve the web page at /"
    )


def tool_parser(text: str) -> str:
    """The name of a way in which models write calls."""
    from tokenmill.server.tools.families import NAMES

    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"there is no {text!r}; choose one of {', '.join(NAMES)}")
    return text


def room(text: str) -> int:
    """A size, or 0."""
    return 0 if text.strip() == "0" else size(text)


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} names nothing")
    return found


def server_config(
    args: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> ServerConfig:
    """The settings that the options and the environment say.

    Raises UsageError if they contradict each other, ConfigError if what they name can't be used.
    """
    from tokenmill.config import ServerConfig
    from tokenmill.server.security import default_hosts
    from tokenmill.server.tls import check_certificate
    from tokenmill.server.tracing import check_installed

    from_environment = (environment[KEY_VARIABLE],) if environment.get(KEY_VARIABLE) else ()
    with as_usage_errors():
        config = ServerConfig(
            api_keys=(*(args.api_key or ()), *from_environment),
            api_key_file=args.api_key_file,
            allowed_hosts=args.allowed_hosts or default_hosts(args.host),
            cors_origins=args.cors_origins,
            max_body_bytes=args.max_body,
            max_stored_bytes=args.max_stored,
            max_prompt_chars=args.max_prompt_chars,
            max_n=args.max_n,
            max_logprobs=args.max_logprobs,
            max_queue=args.max_queue,
            max_requests=args.max_requests,
            request_timeout_s=args.request_timeout or None,
            body_timeout_s=args.body_timeout or None,
            stall_timeout_s=args.stall_timeout or None,
            drain_s=args.shutdown_timeout,
            step_timeout_s=args.step_timeout,
            metrics_prefix=args.metrics_prefix,
            access_log=args.access_log,
            log_prompts=args.log_prompts,
            enable_sleep=args.enable_sleep,
            tool_parser=args.tool_parser,
            web=args.web,
            otlp_endpoint=args.otlp_endpoint,
            ssl_certfile=args.ssl_certfile,
            ssl_keyfile=args.ssl_keyfile,
        )
    check_certificate(config)
    if config.otlp_endpoint is not None:
        check_installed()
    return config


def warnings(host: str, config: ServerConfig) -> Iterator[str]:
    """What whoever starts the server should think about."""
    from tokenmill.server.security import is_loopback

    keys = bool(config.api_keys or config.api_key_file)
    if is_loopback(host):
        return
    if not keys:
        yield (
            f"everyone who reaches {host} can use this server; set {KEY_VARIABLE} or --api-key-file, "
            "see docs/security.md"
        )
    elif config.ssl_certfile is None:
        yield (
            "API keys travel unencrypted; give --ssl-certfile and --ssl-keyfile, or put a proxy with "
            "TLS in front"
        )
