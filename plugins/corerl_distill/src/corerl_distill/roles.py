"""Teachers that are models of their own, as roles of the run."""

from collections.abc import Iterator
from typing import Any

from corerl.contracts.annotators import ModelRole
from corerl.contracts.config import TrainConfig
from corerl.contracts.runtimes import Role
from corerl_distill.options import DistillOptions, path_of, role_name


def model_roles(config: TrainConfig, parts: Any) -> Iterator[ModelRole]:
    """One for each, run by the reference's strategy."""
    options, strategy = parts.policy_loss.options, (parts.ref_strategy or parts.strategy).entry
    if not isinstance(options, DistillOptions):
        return
    for name, teacher in options.named.items():
        if teacher.url is None and teacher.weights == "own":
            role = Role(role_name(name), "ref.strategy", strategy.name, strategy.facts.distributed)
            key = f"actor.policy_loss.teachers.{name}.path" if options.teachers else "actor.policy_loss.teacher"
            yield ModelRole(role, path_of(teacher, config), key)
