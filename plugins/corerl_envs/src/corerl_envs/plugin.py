"""What corerl-envs registers."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl
from corerl.contracts.environments import EnvironmentFactory
from corerl_envs.options import CalculatorOptions, GridWalkDataOptions, GridWalkOptions

if TYPE_CHECKING:
    from corerl_tools.prepare.contract import DatasetPreparer


@hookimpl
def register_environments(register: Register[EnvironmentFactory]) -> None:
    register(
        "calculator",
        "corerl_envs.calculator:Calculator",
        options=CalculatorOptions,
        summary="works out the arithmetic that the policy asks for with <calc>…</calc>",
    )
    register(
        "grid_walk",
        "corerl_envs.grid_walk:GridWalk",
        options=GridWalkOptions,
        summary="a walk to a goal, each move rewarded by the way it gains",
    )


@hookimpl(optionalhook=True)  # of a kind that corerl-tools adds
def register_dataset_preparers(register: Register["DatasetPreparer"]) -> None:
    register(
        "grid-walk",
        "corerl_envs.grid_walk_data:GridWalkData",
        options=GridWalkDataOptions,
        summary="starts and goals for the environment grid_walk, made here",
    )
