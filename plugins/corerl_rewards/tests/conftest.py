"""Two managers that serve most tests of a file."""

from collections.abc import Iterator

import pytest

from corerl_rewards.parallel import ParallelRewardManager
from plugins.corerl_rewards.tests.managers import manager


@pytest.fixture(scope="module")
def quick() -> Iterator[ParallelRewardManager]:
    shared = manager(timeout=1.5, memory_limit_gb=0.5, patience=0.3)
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def patient() -> Iterator[ParallelRewardManager]:
    shared = manager(timeout=60.0, memory_limit_gb=0.5)
    yield shared
    shared.close()
