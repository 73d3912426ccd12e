"""Three test processes on two cores: a thread each, and what takes longest first."""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # or the threads of one process hold up those of the other
os.environ.setdefault("RAY_worker_niceness", "0")  # 15 would have them wait for everything else, against deadlines
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # idle workers, which no actor of ours is put into

GROUPS = ("ray runs", "vllm", "ray", "new plugins", "megatron", "ranks")
"""of ``xdist_group``: tests that share engines, clusters, installed packages, ranks; the longest first, and "ray" after
the two before it, because its cluster stays until its process ends"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups come first, then slow tests; with the short ones all processes end at the same time."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    group = item.get_closest_marker("xdist_group")
    if group is not None and group.args[0] in GROUPS:
        return GROUPS.index(group.args[0])
    return len(GROUPS) + (item.get_closest_marker("slow") is None)
