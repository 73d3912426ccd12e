"""Four test processes on two cores: a thread each, and what takes longest first."""

import gc
import json
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # or the threads of one process hold up those of the other
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # of a wrong name; without a network its library tries for half a minute
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # read at the import of ray: all on the loopback
os.environ.setdefault("RAY_worker_niceness", "0")  # 15 would have them wait for everything else, against deadlines
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # idle workers, which no actor of ours is put into

GROUPS = ("ray runs", "vllm", "ray", "ranks", "real weights", "new plugins")
"""of ``xdist_group``: tests that share engines, clusters, installed packages, ranks; the longest first"""

ENDING = pytest.StashKey[list[Callable[[], None]]]()
"""of the session: what ends clusters and ranks, in the order of their starts"""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay to the end: the garbage collector is off while they are made, and skips them later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """That of ``--dist loadgroup``, without its walk, after each test, through all that a process has finished."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Forgetful(LoadGroupScheduling):
        def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
            for finished in [scope for scope, tests in workload.items() if all(tests.values())]:
                del workload[finished]
            return super()._pending_of(workload)

    return Forgetful(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups come first, then slow tests; with the short ones all processes end at the same time."""
    items.sort(key=_turn)
    _skip_twins(items)


def _skip_twins(items: Sequence[pytest.Item]) -> None:
    """A sixth of the planted faults runs, and of checks that start an interpreter for each entry of a kind, or an
    engine, a distribution's first one.
    """
    seen: set[tuple[Path, str]] = set()
    every = bool(os.environ.get("CORERL_EVERY_TWIN"))
    for planted, item in enumerate(each for each in items if each.path.name == "test_planted.py"):
        if planted % 6 and not every:
            item.add_marker(pytest.mark.skip(reason="one of six planted faults: CORERL_EVERY_TWIN=1 for all"))
    for item in items:
        kind, _, check = item.name.partition("[")[2].removesuffix("]").partition("/")
        place = item.path, kind
        if check.endswith("/same_in_a_fresh_process") and not every:
            if place in seen:
                item.add_marker(pytest.mark.skip(reason="another entry's: CORERL_EVERY_TWIN=1"))
            seen.add(place)
        if check == "vllm/another_engine" and not os.environ.get("CORERL_EVERY_ENGINE"):
            item.add_marker(pytest.mark.skip(reason="starts another engine: CORERL_EVERY_ENGINE=1"))


def _turn(item: pytest.Item) -> int:
    group = _group(item)
    if group in GROUPS:
        return GROUPS.index(group)
    return len(GROUPS) + (item.get_closest_marker("slow") is None)


def _group(item: pytest.Item | None) -> str | None:
    marker = None if item is None else item.get_closest_marker("xdist_group")
    return None if marker is None else str(marker.args[0])


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Clusters and ranks end with the last test in a row of their group: idle ones take a tenth of a core each."""
    if nextitem is None or _group(nextitem) != _group(item):
        endings = item.session.stash.get(ENDING, [])
        while endings:
            endings.pop()()


@pytest.fixture(scope="session")
def at_the_end_of_the_group(request: pytest.FixtureRequest) -> Callable[[Callable[[], None]], None]:
    """``at_the_end_of_the_group(end)``: ``end()`` is called after the last test in a row of the test's group."""
    return request.session.stash.setdefault(ENDING, []).append


@pytest.fixture(scope="session")
def tiny_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer folder of 259 tokens with a Qwen-style chat template.

    Token id = byte for 0 to 255, then ``<|endoftext|>`` 256 (padding), ``<|im_start|>`` 257, ``<|im_end|>`` 258 (eos).
    """
    from corerl_testing.tiny_model import write_byte_tokenizer

    folder = tmp_path_factory.mktemp("tiny_tokenizer")
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture
def abacus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A tracker ``abacus`` of corerl-abacus is known, and not installed."""
    from corerl.registry import base

    table = json.loads(base.KNOWN_NAMES.read_text())
    table["tracker"]["abacus"] = "corerl-abacus"
    (tmp_path / "known_names.json").write_text(json.dumps(table))
    with monkeypatch.context() as patch:
        patch.setattr(base, "KNOWN_NAMES", tmp_path / "known_names.json")
        base.known_names.cache_clear()
        yield
    base.known_names.cache_clear()
