"""The name registered by corerl-openenv."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl_envs import EnvironmentFactory


@hookimpl(optionalhook=True)  # the kind is added by corerl-envs
def register_environments(register: "Register[EnvironmentFactory]") -> None:
    register(
        "openenv",
        "corerl_openenv.environment:OpenEnvEnvironment",
        options="corerl_openenv.options:OpenEnvOptions",
        summary="a server that speaks OpenEnv's protocol (WebSocket), each episode in a session of its own",
    )
