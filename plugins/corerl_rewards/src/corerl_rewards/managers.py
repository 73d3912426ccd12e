"""The reward managers that run scorers, for reward managers of other distributions that wrap them."""

from corerl_rewards.calls import Made
from corerl_rewards.naive import NaiveRewardManager
from corerl_rewards.options import ParallelOptions
from corerl_rewards.parallel import ParallelRewardManager

__all__ = ["Made", "NaiveRewardManager", "ParallelOptions", "ParallelRewardManager"]
