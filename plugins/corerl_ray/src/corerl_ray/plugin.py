"""What corerl-ray registers."""

from corerl import hookimpl
from corerl.hookspecs import Register
from corerl.registry.runtimes import RuntimeFactory
from corerl_ray.options import RayOptions


@hookimpl
def register_runtimes(register: Register[RuntimeFactory]) -> None:
    register(
        "ray",
        "corerl_ray.launch:launch",
        options=RayOptions,
        summary="every worker a process of its own, on one machine or many (Ray)",
    )
