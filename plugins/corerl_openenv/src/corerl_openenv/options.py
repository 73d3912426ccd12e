"""Options of the environment ``openenv``."""

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from corerl import option
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError


@dataclass(frozen=True)
class OpenEnvOptions:
    """Options of the environment ``openenv``."""

    url: str = option(help="address of the server, such as http://localhost:8000")
    reset: dict[str, Any] = option(
        help="arguments of each reset; those of a row's extra_info.reset precede them", factory=dict
    )
    pass_seed: bool = option(True, "pass the episode's seed to reset, which ignores it if it takes none")
    observation: str | None = option(None, "field of the observation that the policy reads; null: all of it, as JSON")
    describe_actions: bool = option(True, "append the form of an action to the first message")
    role: Literal["user", "tool"] = option("user", "role of the messages with observations")
    invalid_penalty: float = option(0.0, "subtracted from the reward of a turn without a valid action", ge=0)
    execution_errors: Literal["environment", "policy"] = option(
        "environment", "fault of an error within the server's step: an error of the episode, or an answer to the policy"
    )
    headers: dict[str, str] = option(help="HTTP headers of all requests; a value may be ${env:NAME}", factory=dict)
    timeout: float = option(60.0, "seconds for an answer of the server", gt=0)
    max_message_mb: float = option(16.0, "MiB of one answer of the server", gt=0)

    def check(self, key: str, config: TrainConfig) -> None:
        """
        Raises:
            ConfigError: the address is none.
        """
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{key}.url", f"should be an address such as http://localhost:8000, found {self.url!r}")
