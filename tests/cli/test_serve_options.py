from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CliEngine
from tokenmill.cli import main, serve_options
from tokenmill.cli.main import build_parser
from tokenmill.cli.usage import UsageError
from tokenmill.config import ServerConfig
from tokenmill.errors import ConfigError
from tokenmill.server import process


def config(*options: str, environment: Mapping[str, str] | None = None) -> ServerConfig:
    args = build_parser().parse_args(["serve", "fake", *options])
    return serve_options.server_config(args, environment or {})


def test_defaults_are_those_of_the_settings() -> None:
    assert config() == ServerConfig(allowed_hosts=("localhost", "127.0.0.1", "::1"))


def test_options_reach_the_settings(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    found = config(
        *("--api-key", "a", "--api-key", "b", "--api-key-file", str(keys)),
        *("--allowed-hosts", "one, two", "--cors-origins", "https://a.example"),
        *("--max-queue", "7", "--max-requests", "8", "--max-n", "2", "--max-logprobs", "0"),
        *("--request-timeout", "1.5", "--body-timeout", "0", "--stall-timeout", "0"),
        *(
            "--max-body",
            "1K",
            "--max-stored",
            "0",
            "--max-prompt-chars",
            "9",
            "--shutdown-timeout",
            "3",
        ),
        *("--step-timeout", "4", "--metrics-prefix", "vllm", "--access-log", "--log-prompts"),
        *("--enable-sleep", "--no-web", "--otlp-endpoint", "http://collector:4318"),
        environment={"TOKENMILL_API_KEY": "c"},
    )
    assert found == ServerConfig(
        api_keys=("a", "b", "c"),
        api_key_file=keys,
        allowed_hosts=("one", "two"),
        cors_origins=("https://a.example",),
        max_queue=7,
        max_requests=8,
        max_n=2,
        max_logprobs=0,
        request_timeout_s=1.5,
        body_timeout_s=None,
        stall_timeout_s=None,
        max_body_bytes=1024,
        max_stored_bytes=0,
        max_prompt_chars=9,
        drain_s=3,
        step_timeout_s=4,
        metrics_prefix="vllm",
        access_log=True,
        log_prompts=True,
        enable_sleep=True,
        web=False,
        otlp_endpoint="http://collector:4318",
    )


def test_an_empty_variable_is_no_key() -> None:
    assert config(environment={"TOKENMILL_API_KEY": ""}).api_keys == ()


@pytest.mark.parametrize(
    ("host", "hosts"),
    [("0.0.0.0", None), ("10.0.0.1", ("localhost", "127.0.0.1", "::1", "10.0.0.1"))],
)
def test_hosts_follow_the_address(host: str, hosts: Any) -> None:
    assert config("--host", host).allowed_hosts == hosts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ssl-certfile", "c.pem"), "both"),
        (("--metrics-prefix", "a b"), "prefix"),
        (("--api-key", "two words"), "API key"),
        (("--max-logprobs", "-1"), "max_logprobs"),
    ],
)
def test_contradictions(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config(*options)


@pytest.mark.parametrize(
    "options", [("--request-timeout", "-1"), ("--request-timeout", "nan"), ("--allowed-hosts", ",")]
)
def test_wrong_values(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "fake", *options]) == 2
    assert options[0] in capsys.readouterr().err


def test_warnings() -> None:
    def warned(host: str, **options: Any) -> str:
        return " ".join(serve_options.warnings(host, ServerConfig(**options)))

    assert warned("127.0.0.1") == ""
    assert warned("localhost", api_keys=("k",)) == ""
    assert "everyone who reaches 0.0.0.0" in warned("0.0.0.0")
    assert "unencrypted" in warned("0.0.0.0", api_keys=("k",))
    files = {"ssl_certfile": Path("c"), "ssl_keyfile": Path("k")}
    assert warned("0.0.0.0", api_keys=("k",), **files) == ""


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--api-key-file", "missing"), "cannot read the API key file"),
        (("--ssl-certfile", "missing", "--ssl-keyfile", "missing"), "cannot serve TLS"),
    ],
)
def test_files_are_tried_before_the_model_is_loaded(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "fake", "--port", "0", *options]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_certificates(tmp_path: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -subj /CN=localhost -days 1"
    for name, more in (("plain", "-nodes"), ("locked", "-passout pass:secret")):
        files = ["-keyout", str(tmp_path / f"{name}.key"), "-out", str(tmp_path / f"{name}.pem")]
        subprocess.run([*command.split(), *more.split(), *files], check=True, capture_output=True)

    def options(certificate: str, key: str) -> tuple[str, ...]:
        return ("--ssl-certfile", str(tmp_path / certificate), "--ssl-keyfile", str(tmp_path / key))

    assert config(*options("plain.pem", "plain.key")).ssl_keyfile == tmp_path / "plain.key"
    for pair in (("locked.pem", "locked.key"), ("plain.key", "plain.pem"), ("plain.pem", "locked.key")):
        with pytest.raises(ConfigError, match="cannot serve TLS"):
            config(*options(*pair))


@pytest.mark.parametrize(("healthy", "status"), [(True, 0), (False, 1)])
def test_the_exit_status_says_whether_the_engine_lived(
    healthy: bool,
    status: int,
    engine: CliEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(process, "serve", lambda *args, **kwargs: healthy)
    monkeypatch.setenv("TOKENMILL_API_KEY", "hush")
    names = ("--served-model-name", "first", "--served-model-name", "second")
    assert main(["serve", "fake", "--port", "0", *names]) == status
    assert engine.is_shut_down
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "model     first, second, up to 1000 tokens"
    assert "access    with an API key" in lines
    assert any(line.startswith("address   http://127.0.0.1:") for line in lines)
    assert any(line.startswith("web page  http://127.0.0.1:") for line in lines)
    assert lines[-2].startswith("  curl http://127.0.0.1:")
    assert "Bearer '$TOKENMILL_API_KEY" in lines[-2]
    assert '"model": "first"' in lines[-2]
    assert "hush" not in "".join(lines)
    assert lines[-1] == ("stopped" if healthy else "stopped: the engine died")


def test_a_page_that_is_left_out_is_not_announced(
    engine: CliEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "serve", lambda *args, **kwargs: True)
    assert main(["serve", "fake", "--port", "0", "--no-web"]) == 0
    assert "web page" not in capsys.readouterr().err
