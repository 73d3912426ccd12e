"""The names registered by corerl-verifiers."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl_envs import EnvironmentFactory


@hookimpl(optionalhook=True)  # the kind is added by corerl-envs
def register_environments(register: "Register[EnvironmentFactory]") -> None:
    register(
        "verifiers",
        "corerl_verifiers.environment:VerifiersEnvironment",
        options="corerl_verifiers.options:VerifiersOptions",
        summary="an environment of the library verifiers: single turn, several turns or tools, with its rubric",
    )
