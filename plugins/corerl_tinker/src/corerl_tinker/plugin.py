"""The service ``tinker`` of ``corerl serve``."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl_gateway.services import Service


@hookimpl(optionalhook=True)  # the kind is added by corerl-gateway
def register_services(register: "Register[Service]") -> None:
    register(
        "tinker",
        "corerl_tinker.serving:serve",
        options="corerl_tinker.options:TinkerOptions",
        summary="Tinker's API: clients of the SDK train and sample the model",
    )
