"""The endpoint of a run, its options, the command ``serve``, and the rollout backends of other servers."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from corerl import Register, hookimpl
from corerl.contracts.kinds import Kind

if TYPE_CHECKING:
    from corerl.contracts.agents import ChatFactory, Endpoint
    from corerl.contracts.commands import Command
    from corerl.contracts.config import ModelConfig, TrainConfig
    from corerl.contracts.rollout_backends import RolloutBackendFactory
    from corerl.errors import RequestError
    from corerl_gateway.options import EndpointOptions
    from corerl_gateway.remote.text_tokens import TextTokenizer


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
def add_kinds(add: Callable[[Kind], None]) -> None:
    add(Kind("services", "service", "corerl_gateway.services:Service"))


@hookimpl
def register_commands(register: "Register[Command]") -> None:
    register("serve", "corerl_gateway.serve:serve", summary="Serve a model for HTTP clients.")


@hookimpl
def register_rollout_backends(register: "Register[RolloutBackendFactory]") -> None:
    register(
        "remote",
        "corerl_gateway.remote.tokens:remote",
        options="corerl_gateway.remote.options:RemoteOptions",
        summary="a model of corerl serve or vLLM, by tokens over HTTP, for corerl generate",
    )
    register(
        "openai",
        "corerl_gateway.remote.completions:openai",
        options="corerl_gateway.remote.options:OpenAIOptions",
        summary="a model of any server with OpenAI's chat completions, for corerl generate",
    )


@hookimpl
def load_tokenizer(model: "ModelConfig") -> "TextTokenizer | None":
    from corerl_gateway.remote.names import PREFIX

    if not model.path.startswith(PREFIX):
        return None
    from corerl_gateway.remote.text_tokens import TextTokenizer

    return TextTokenizer()


@hookimpl(tryfirst=True)
def make_chats(config: "TrainConfig") -> "ChatFactory | None":
    if config.rollout.name != "openai":
        return None
    from corerl_gateway.remote.chats import make_chats

    return make_chats(config)


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
