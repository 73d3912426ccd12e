"""Commands of verl as configs."""

from corerl.config import typed
from corerl.contracts.config import TrainConfig
from corerl_verl.from_verl import from_verl


def convert(*arguments: str) -> tuple[TrainConfig, list[str]]:
    values, remarks = from_verl(["actor_rollout_ref.model.path=m", *arguments])
    return typed.build(TrainConfig, values), remarks
