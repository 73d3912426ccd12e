"""Services: what ``corerl serve`` serves besides the dialects of the endpoint, each by a flag of its name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from corerl.plugins import Plugins

PARTS = "services"
"""the registry of the kind"""


@dataclass(frozen=True)
class ServeRequest:
    """The command line of ``corerl serve``.

    Attributes:
        values: of the training config, without its defaults; a service may add its own.
        plugins: of the config.
        host: None: that of the config's endpoint.
        api_key_env: variable with the key; None: the service's choice.
    """

    values: dict[str, Any]
    plugins: "Plugins"
    host: str | None
    port: int
    api_key_env: str | None


class Service(Protocol):
    """Serves a model until SIGINT or SIGTERM. With options it takes ``options``, given as ``NAME.OPTION=VALUE``."""

    def __call__(self, request: ServeRequest) -> None: ...


def split_options(name: str, overrides: Sequence[str]) -> tuple[Mapping[str, Any], list[str]]:
    """The options of a service, and the overrides of the config.

    >>> split_options("tinker", ["tinker.max_models=2", "model.lora_rank=8"])
    ({'max_models': 2}, ['model.lora_rank=8'])
    """
    from corerl.config.load import parse_override

    options: dict[str, Any] = {}
    rest = []
    for override in overrides:
        if override.startswith(f"{name}."):
            key, value = parse_override(override)
            options[key.removeprefix(f"{name}.")] = value
        else:
            rest.append(override)
    return options, rest
