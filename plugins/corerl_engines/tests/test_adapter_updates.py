"""Updates of adapters: their tensors are described to the engine once, and written together."""

from types import SimpleNamespace

import pytest
import torch

from corerl_engines.backend import EngineBackend
from corerl_engines.options import EngineOptions
from corerl_engines.remote.weights import Held
from corerl_engines.weights import HostBucket, Layout
from corerl_torch.weights import complete

SHAPES = {"a": (3, 2), "b": (5,), "c": ()}


class Engine:
    """In place of an engine's process: each adapter's tensors after each load."""

    def __init__(self):
        self.held, self.described, self.fails = [Held(), Held()], [], False

    def submit(self, kind, *, bucket, verify):
        self.described.append(bucket["tensors"] is not None)
        if self.fails:
            raise RuntimeError("the engine is gone")
        self.held[bucket["adapter"]].take(bucket, torch.device("cpu"))
        return 0, {"digests": []}

    def answer(self, loading, *_):
        return loading


def sent(backend, engine, adapter, shapes=SHAPES, start=0.0):
    """Send tensors of consecutive numbers, and compare those of the engine."""
    given = {}
    for name, shape in shapes.items():
        size = torch.Size(shape).numel()
        given[name], start = torch.arange(start, start + size).view(shape), start + size
    backend._send_adapter(list(given.items()), adapter, False)
    for name, tensor in given.items():
        assert torch.equal(engine.held[adapter].tensors[name], tensor), name


@pytest.fixture
def made():
    backend, engine = object.__new__(EngineBackend), Engine()
    expected = {name: torch.empty(shape) for name, shape in SHAPES.items()}
    vars(backend).update(
        _ready={"devices": [], "keeps_layouts": True},
        _options=EngineOptions(),
        _process=engine,
        _dtype=torch.float32,
        _layout=None,
        _shared=[HostBucket(4096), HostBucket(4096)],
        _expected=SimpleNamespace(checked=lambda named: complete(named, expected)),
    )
    yield backend, engine
    backend._close_buckets()


def test_the_tensors_of_an_adapter_are_described_once(made):
    backend, engine = made
    for number in range(3):
        sent(backend, engine, 0, start=10.0 * number)
    sent(backend, engine, 1)  # another adapter
    sent(backend, engine, 1, start=7.0)
    assert engine.described == [True, False, False, True, False]


def test_an_engine_that_keeps_no_layout_gets_it_each_time(made):
    backend, engine = made
    backend._ready["keeps_layouts"] = False
    for number in range(2):
        sent(backend, engine, 0, start=float(number))
    assert engine.described == [True, True]


def test_after_a_failure_or_with_other_tensors_they_are_described_again(made):
    backend, engine = made
    sent(backend, engine, 0)
    engine.fails = True
    with pytest.raises(RuntimeError, match="gone"):
        sent(backend, engine, 0)
    engine.fails = False
    sent(backend, engine, 0)
    backend._expected.checked = lambda named: complete(named, {"a": torch.empty(4)})
    sent(backend, engine, 0, {"a": (4,)})
    assert engine.described == [True, False, True, True]


def test_tensors_of_several_buckets_have_no_layout():
    given = [("a", torch.zeros(3)), ("b", torch.zeros(3))]
    assert Layout.of(None, given, lambda named: named, 16, torch.float32) is None


def test_a_bucket_without_a_description_needs_an_earlier_one():
    with pytest.raises(RuntimeError, match="no earlier update had described them"):
        Held().take({"tensors": None, "source": {}}, torch.device("cpu"))
