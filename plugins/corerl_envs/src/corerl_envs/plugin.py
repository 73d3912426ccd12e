"""The names registered by corerl-envs."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl_envs import EnvironmentFactory
    from corerl_tools.prepare.contract import DatasetPreparer


@hookimpl
def register_environments(register: "Register[EnvironmentFactory]") -> None:
    register(
        "calculator",
        "corerl_envs.calculator:Calculator",
        options="corerl_envs.options:CalculatorOptions",
        summary="evaluates the policy's arithmetic in <calc>…</calc>",
    )
    register(
        "grid_walk",
        "corerl_envs.grid_walk:GridWalk",
        options="corerl_envs.options:GridWalkOptions",
        summary="a walk to a goal, each move rewarded by its gain in distance",
    )


@hookimpl(optionalhook=True)  # the kind is added by corerl-tools
def register_dataset_preparers(register: "Register[DatasetPreparer]") -> None:
    register(
        "grid-walk",
        "corerl_envs.grid_walk_data:GridWalkData",
        options="corerl_envs.options:GridWalkDataOptions",
        summary="generated starts and goals for the environment grid_walk",
    )
