"""Four test processes on two cores: a thread each, and what takes longest first."""

import gc
import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # or the threads of one process hold up those of the other
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # read at the import of ray: all on the loopback
os.environ.setdefault("RAY_worker_niceness", "0")  # 15 would have them wait for everything else, against deadlines
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # idle workers, which no actor of ours is put into

GROUPS = ("ray runs", "vllm", "ray", "megatron", "new plugins", "ranks")
"""of ``xdist_group``: tests that share engines, clusters, installed packages, ranks; the longest first, and "ray" after
the two before it, because its cluster stays until its process ends"""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay to the end: the garbage collector is off while they are made, and skips them later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups come first, then slow tests; with the short ones all processes end at the same time."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    group = item.get_closest_marker("xdist_group")
    if group is not None and group.args[0] in GROUPS:
        return GROUPS.index(group.args[0])
    return len(GROUPS) + (item.get_closest_marker("slow") is None)


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
