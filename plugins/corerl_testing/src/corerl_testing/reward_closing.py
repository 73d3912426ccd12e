"""Checks of the close() of reward managers."""

import time
from collections.abc import Mapping

from corerl.contracts.reward_managers import RewardManagerFactory
from corerl.registry import Selected
from corerl_testing import surroundings
from corerl_testing.results import CheckFailed
from corerl_testing.reward_harness import HANG, PATIENCE, Manager, ask


def close_ends(selected: Selected[RewardManagerFactory]) -> None:
    """close() returns even if a scorer hangs."""
    with Manager(selected, workers=2, timeout=0.2) as manager:
        manager.score([ask(), ask(seconds=HANG), ask()], 0.4 + PATIENCE)


def close_gives_back(selected: Selected[RewardManagerFactory]) -> None:
    """close() frees all resources: a process may have many runs, as in a sweep, a test or a notebook."""
    _use(selected)
    before = surroundings.counts()
    for _ in range(2):
        _use(selected)
    ends = time.monotonic() + PATIENCE
    while more := _more(before):
        if time.monotonic() > ends:
            raise CheckFailed(f"two managers that were closed left {more} behind")
        time.sleep(0.05)


def _more(before: Mapping[str, int]) -> str:
    """The resources that have grown, as text."""
    more = {name: count - before[name] for name, count in surroundings.counts().items()}
    return ", ".join(f"{count} {name}" for name, count in more.items() if count > 0)


def _use(selected: Selected[RewardManagerFactory]) -> None:
    with Manager(selected) as manager:
        manager.score([ask(str(n)) for n in range(8)])
