"""TLS files, tried before the model is loaded."""

from __future__ import annotations

import ssl

from tokenmill.config import ServerConfig
from tokenmill.errors import ConfigError


def check_certificate(config: ServerConfig) -> None:
    """Raises ConfigError if the configured files can't serve TLS."""
    if config.ssl_certfile is None or config.ssl_keyfile is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            config.ssl_certfile, config.ssl_keyfile, password=_no_password
        )
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise ConfigError(
            f"cannot serve TLS with {config.ssl_certfile} and {config.ssl_keyfile}: {error}; give a "
            "PEM certificate and its PEM key without a password"
        ) from error


def _no_password() -> str:
    raise ValueError("the key needs a password")
