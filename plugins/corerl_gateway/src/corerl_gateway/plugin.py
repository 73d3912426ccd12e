"""The endpoint of a run, its options, and the command ``serve``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.agents import Endpoint
    from corerl.contracts.commands import Command
    from corerl.contracts.config import TrainConfig
    from corerl.errors import RequestError
    from corerl_gateway.options import EndpointOptions


def read_options(config: "TrainConfig") -> "EndpointOptions":
    """The options of the endpoint.

    Raises:
        ConfigError: an unknown or wrong one.
    """
    from corerl.config import typed
    from corerl_gateway.options import KEY, EndpointOptions

    options = typed.build(EndpointOptions, config.rollout.multi_turn.endpoint, KEY)
    options.check(KEY)
    return options


@hookimpl
def register_commands(register: "Register[Command]") -> None:
    register("serve", "corerl_gateway.serve:serve", summary="Serve a model for HTTP clients.")


@hookimpl
def config_errors(config: "TrainConfig") -> "Iterator[RequestError]":
    from corerl.errors import RequestError

    try:
        read_options(config)
    except RequestError as error:
        yield error


@hookimpl
def make_endpoint(config: "TrainConfig") -> "Endpoint | None":
    from corerl.terminal import say

    try:
        from corerl_gateway.endpoint import make_endpoint
    except ImportError as error:
        say(f"agents get no HTTP endpoint: {error}: pip install corerl-gateway again")
        return None
    return make_endpoint(config, read_options(config))
