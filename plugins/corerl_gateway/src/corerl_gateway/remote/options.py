"""Options of the rollout backends ``remote`` and ``openai``."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from corerl import option
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError, RequestError
from corerl.secrets import plain_secrets, reveal
from corerl_check import Machine
from corerl_gateway.options import OPEN_KEY, is_loopback
from corerl_gateway.remote.names import PREFIX

KEY = "rollout.options"


@dataclass
class ServerOptions:
    """The server, and the patience with it."""

    url: str = option(help="base URL as OpenAI's clients take it, such as http://127.0.0.1:8000/v1")
    api_key: str | None = option(None, "${env:NAME}; null: no key, and that of corerl serve on the loopback")
    timeout: float = option(600.0, "deadline of a request and its retries, in seconds", gt=0)
    max_retries: int = option(6, "retries of a request after 429, 5xx or a lost connection", ge=0, le=20)

    @property
    def address(self) -> str:
        """The URL without a closing slash; it holds no key."""
        return self.url.rstrip("/")

    @property
    def served_by(self) -> str:
        """For :class:`corerl_check.ServedOptions`."""
        return self.address

    def key(self) -> str | None:
        """The key.

        Raises:
            ConfigError: its variable is not set, or holds characters that no header may have.
        """
        if self.api_key is None:
            return OPEN_KEY if is_loopback(urlsplit(self.url).hostname or "") else None
        key = reveal(self.api_key)
        if not key.isascii() or not key.isprintable():
            raise ConfigError(f"{KEY}.api_key", f"{self.api_key} has characters that no header may have")
        return key

    def check(self, key: str, config: TrainConfig) -> None:
        """Refuse training and serving: both need a model of one's own.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "rollout.name",
            f"'{config.rollout.name}' asks the model of another server, whose weights no training can replace: "
            "corerl generate takes it; choose another rollout backend",
        )

    def examine(self, key: str, config: TrainConfig, machine: Machine) -> Iterator[RequestError]:
        """For :class:`corerl_check.Examined`: errors of the URL and of the key."""
        try:
            check_url(self.url)
            yield from plain_secrets(asdict(self), KEY)
            yield from self.errors(config)
            self.key()
        except RequestError as error:
            yield error

    def errors(self, config: TrainConfig) -> Iterator[RequestError]:
        """Errors of the kind of server."""
        yield from ()


@dataclass
class RemoteOptions(ServerOptions):
    """A server with ``/inference/v1/generate``: corerl serve, vLLM."""

    model: str | None = option(None, "name of the model at the server; null: the only one of its /models")

    def errors(self, config: TrainConfig) -> Iterator[RequestError]:
        """See :meth:`ServerOptions.errors`."""
        if config.model.path.startswith(PREFIX):
            yield ConfigError("model.path", "'remote' needs the folder or hub name of the model's tokenizer")


@dataclass
class OpenAIOptions(ServerOptions):
    """A server with ``/chat/completions``."""

    body: dict[str, Any] = option(
        help="fields of each request, such as reasoning_effort; null leaves out a field of CoreRL's", factory=dict
    )

    def errors(self, config: TrainConfig) -> Iterator[RequestError]:
        """See :meth:`ServerOptions.errors`."""
        if not config.model.path.removeprefix(PREFIX) or not config.model.path.startswith(PREFIX):
            yield ConfigError("model.path", f"'openai' needs the model's name at the server, as {PREFIX}NAME")
        if config.rollout.multi_turn.environment is not None:
            yield ConfigError(
                "rollout.multi_turn.environment", "asks by tokens, which 'openai' lacks: choose rollout.name=remote"
            )


def check_url(url: str) -> None:
    """Raise ConfigError, which does not show the URL, unless it is plain: scheme, host, port, path."""
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_plain = False
    if not is_plain or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"{KEY}.url", "must be a URL such as https://example.com/v1")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigError(
            f"{KEY}.url", "has a user, a query or a fragment, which may hold a key: write the key as api_key"
        )
