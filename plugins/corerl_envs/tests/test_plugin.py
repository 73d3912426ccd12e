"""The keys that select an environment and its agent."""

import pytest

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl_envs.plugin import config_errors


@pytest.mark.parametrize(
    ("agent", "environment", "error"),
    [
        (None, None, ""),
        (None, "calculator", ""),
        ("environment", {"name": "grid_walk"}, ""),
        ("mine", None, ""),
        ("environment", None, "rollout.agent: 'environment' drives an environment: set rollout.multi_turn.environment"),
        (
            {"name": "mine"},
            "calculator",
            "rollout.multi_turn.environment: belongs to the agent 'environment', and rollout.agent is 'mine'",
        ),
    ],
)
def test_an_environment_and_its_agent_go_together(agent, environment, error):
    config = TrainConfig(ModelConfig("tiny"))
    config.rollout.agent, config.rollout.multi_turn.environment = agent, environment
    assert [str(each) for each in config_errors(config)] == ([error] if error else [])
