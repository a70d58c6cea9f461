from __future__ import annotations

import signal
import socket

import pytest

from tokenmill.cli import main
from tokenmill.cli.serve import leaving_on_sigterm, listen
from tokenmill.errors import ConfigError


@pytest.mark.usefixtures("no_engine")
def test_a_port_that_is_taken_is_known_before_loading(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "fake", "--port", str(port)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"tokenmill: error: cannot listen on 127.0.0.1 port {port}: ")
    assert err.count("\n") == 1


def test_a_host_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="choose another --host"):
        listen("no.such.host.invalid", 0)


def test_a_free_port() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


def test_sigterm_while_the_model_is_loaded() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with leaving_on_sigterm(), pytest.raises(SystemExit) as leaving:
        signal.raise_signal(signal.SIGTERM)
    assert leaving.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
