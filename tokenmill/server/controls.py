"""What those who run the server may change while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenmill.config import ServerConfig
from tokenmill.server.admission import Gate
from tokenmill.server.security import ApiKeys


@dataclass(frozen=True)
class Controls:
    """Shared by the application, which obeys them, and the process, whose signals move them."""

    keys: ApiKeys = field(default_factory=ApiKeys)
    gate: Gate = field(default_factory=Gate)

    @classmethod
    def of(cls, config: ServerConfig) -> Controls:
        """As configured. Raises ConfigError if the key file can't be used."""
        return cls(ApiKeys(config.api_keys, config.api_key_file))
