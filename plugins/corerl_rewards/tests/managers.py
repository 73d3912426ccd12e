"""Managers whose scorers run in processes: what the tests of them share."""

import time
from pathlib import Path
from typing import Any

from corerl.contracts.reward_managers import RewardRequest
from corerl.registry.coroutines import blocking
from corerl_rewards.options import ParallelOptions
from corerl_rewards.parallel import ParallelRewardManager
from plugins.corerl_rewards.tests import attacks

SCORERS: dict[str, Any] = {
    "s": attacks.score,
    "slow": attacks.slow,
    "burn": attacks.burn,
    "long": attacks.long,
    "leaking": attacks.leaking,
    "coroutine": blocking(attacks.coroutine),
    "whereabouts": attacks.whereabouts,
}


def manager(num_workers: int = 2, timeout: float = 10.0, **options: Any) -> ParallelRewardManager:
    return ParallelRewardManager(SCORERS, num_workers=num_workers, timeout=timeout, options=ParallelOptions(**options))


def requests(*responses: str, source: str = "s") -> list[RewardRequest]:
    return [RewardRequest(response, "truth", source) for response in responses]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))
