"""The README's reward is executed."""

from pathlib import Path
from typing import Any

from corerl.contracts.reward_managers import RewardRequest
from corerl_rewards.naive import NaiveRewardManager

README = Path(__file__).parents[1] / "README.md"


def test_the_custom_reward_of_the_readme_works() -> None:
    names: dict[str, Any] = {}
    exec(README.read_text().split("```python\n")[1].split("```")[0], names)
    naive = NaiveRewardManager({"s": names["brief"]}, num_workers=1, timeout=10)
    right, wrong = naive.score([RewardRequest("It is 42", "42", "s"), RewardRequest("no" * 200, "42", "s")])
    assert (right.score, right.components, right.extracted) == (1.1, {"correct": 1.0}, "It is 42")
    assert (wrong.score, wrong.error) == (0.0, None)
