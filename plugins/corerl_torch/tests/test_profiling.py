"""Options of profiles; tests/integration/test_profiles.py has runs."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from corerl.contracts.config import ModelConfig, RuntimeConfig, TrainConfig, TrainerConfig
from corerl.registry.parts import Parts
from corerl_torch.profiling.options import violations

PARTS = cast(Parts, SimpleNamespace(value_loss=None, needs_ref=True))


def of(**profile: Any) -> list[str]:
    trainer = TrainerConfig(total_training_steps=3, profile=profile)
    config = TrainConfig(ModelConfig("x"), trainer=trainer, runtime=RuntimeConfig(n_gpus_per_node=2))
    return [str(error) for error in violations(config, PARTS)]


def test_without_the_section_and_with_right_options_nothing_is_refused() -> None:
    assert of() == []
    assert of(steps=[1, 3], ranks=None, roles=["actor", "ref", "rollout"], memory=True) == []


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ({"step": [1]}, "trainer.profile.step: unknown key"),
        ({"steps": []}, "trainer.profile.steps: must name steps, the first of which is 1, not []"),
        ({"steps": [0]}, "trainer.profile.steps: must name steps, the first of which is 1, not [0]"),
        ({"steps": [4]}, "step 4 comes after the last, trainer.total_training_steps = 3"),
        ({"steps": [1], "roles": ["actr"]}, "'actr' is none of actor, critic, ref, rollout (did you mean 'actor'?)"),
        ({"steps": [1], "roles": ["critic"]}, "this run has no critic; it has actor, ref, rollout"),
        ({"steps": [1], "roles": []}, "must name some of actor, critic, ref, rollout"),
        ({"steps": [1], "trace": False}, "trainer.profile.trace: must be true if trainer.profile.memory is false"),
        ({"steps": [1], "ranks": [-1]}, "must be ranks (0, 1, …), or null for all, not [-1]"),
        ({"steps": [1], "ranks": [2]}, "rank 2 does not exist: training has 2 GPUs"),
        ({"steps": [1], "max_entries": 0}, "trainer.profile.max_entries: must be at least 1"),
    ],
)
def test_a_wrong_option_is_one_sentence(profile: dict[str, Any], said: str) -> None:
    [error] = of(**profile)
    assert said in error
