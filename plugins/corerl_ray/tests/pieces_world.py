"""The transport of pieces without Ray: hosts of actors and rollout workers in threads, and engines whose ranks are
objects of this process with loaders as those of engines: fused, divided, padded.
"""

import gc
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from types import SimpleNamespace

import torch

from corerl.contracts.pieces import Piece
from corerl.errors import EngineDeadError, RunError
from corerl_engines.remote import pieces
from corerl_ray.calls import Call
from corerl_ray.transports import exchange, sharded
from corerl_ray.transports.broadcast import Broken
from corerl_torch.weights.digest import digests

HIDDEN, WIDTH, HEADS, KV, HEAD, VOCABULARY, EXPERTS = 8, 12, 4, 1, 2, 13, 4


def model(seed=0, dtype=torch.float32):
    """Weights by name, as in files."""
    shapes = {"embed": (VOCABULARY, HIDDEN), "norm": (HIDDEN,), "scale": (), "bias": (HIDDEN,)}
    shapes |= {"q": (HEADS * HEAD, HIDDEN), "k": (KV * HEAD, HIDDEN), "v": (KV * HEAD, HIDDEN)}
    shapes |= {"o": (HIDDEN, HEADS * HEAD), "gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    shapes |= {f"expert.{number}": (WIDTH, HIDDEN) for number in range(EXPERTS)}
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


class Rank:
    """One of ``size`` ranks of an engine: tensor parallel, experts divided by rank."""

    def __init__(self, rank, size, in_place, dtype):
        self.rank, self.size, self.in_place, self.receiver = rank, size, in_place, None
        rows = -(-VOCABULARY // size)
        heads = (HEADS // size + 2 * KV) * HEAD
        shapes = {"embed": (rows, HIDDEN), "norm": (HIDDEN,), "scale": (), "bias": (HIDDEN,), "qkv": (heads, HIDDEN)}
        shapes |= {"o": (HIDDEN, HEADS * HEAD // size), "gate_up": (2 * WIDTH // size, HIDDEN)}
        shapes |= {"down": (HIDDEN, WIDTH // size), "experts": (EXPERTS // size, HIDDEN, WIDTH)}
        self.parameters = {name: torch.full(shape, torch.nan, dtype=dtype) for name, shape in shapes.items()}

    def load(self, named):
        loaded = set()
        for name, tensor in named:
            loaded |= {self.load_one(name, tensor)}
        return loaded

    def load_one(self, name, tensor):
        own, rank, size = self.parameters, self.rank, self.size
        if name == "embed":
            rows = own["embed"].shape[0]
            tensor = tensor[rank * rows : (rank + 1) * rows]
            own["embed"][: len(tensor)].copy_(tensor)
            own["embed"][len(tensor) :].fill_(0)
        elif name in ("q", "k", "v"):
            queries = HEADS // size * HEAD
            start, rows = {"q": (0, queries), "k": (queries, KV * HEAD), "v": (queries + KV * HEAD, KV * HEAD)}[name]
            own["qkv"].narrow(0, start, rows).copy_(tensor.narrow(0, rank * queries if name == "q" else 0, rows))
            return "qkv"
        elif name in ("gate", "up"):
            rows = WIDTH // size
            own["gate_up"].narrow(0, rows * (name == "up"), rows).copy_(tensor.narrow(0, rank * rows, rows))
            return "gate_up"
        elif name in ("o", "down"):
            columns = own[name].shape[1]
            own[name].copy_(tensor.narrow(1, rank * columns, columns))
        elif name.startswith("expert."):
            each = EXPERTS // size
            number = int(name.removeprefix("expert."))
            if number // each == rank:
                own["experts"][number % each].copy_(tensor.t())  # a loader that turns them
            return "experts"
        else:
            own[name].copy_(tensor)
        return name


class Engine:
    """A rollout backend with ranks. ``damage``: a byte to change in the memory of rank ``damaged`` before a round."""

    damaged = 0

    def __init__(self, ranks, in_place=True, dtype=torch.float32):
        self.ranks = [Rank(rank, ranks, in_place, dtype) for rank in range(ranks)]
        self.versions, self.damage, self.fails_at, self.is_closed = [], None, None, False

    def close(self):
        self.is_closed = True

    def needs(self, weights):
        self.found = [pieces.find(rank.load, weights) for rank in self.ranks]
        return [
            {name: [tuple(map(tuple, box)) for box in boxes] for name, boxes in found.reads.boxes.items()}
            for found in self.found
        ]

    def expect(self, plans):
        for rank, found, plan in zip(self.ranks, self.found, plans, strict=True):
            rank.receiver = pieces.Receiver(found, plan, rank.in_place, "cpu", digests)

    def update_pieces(self, rounds, version, *, verify=False):
        if self.is_closed:
            raise RunError("the engine is closed")
        for rank in self.ranks:
            for tensor in rank.parameters.values():
                tensor.fill_(torch.nan)
            rank.receiver.begin()
        loaded = [set() for _ in self.ranks]
        for each in rounds:
            if each.number == self.fails_at:
                raise RunError("the engine fails")
            for rank, own, place in zip(self.ranks, loaded, each.places, strict=True):
                if self.damage is not None and rank.rank == self.damaged and each.number == 0:
                    rank.receiver._memory[place[0] + self.damage] += 1
                changed, names = rank.receiver.take(each.number, *place, verify=verify)
                own |= names
                if changed:
                    raise RunError(f"weight '{changed[0]}' arrived changed")
            each.done()
        if self.is_closed:
            raise RunError("the engine is closed")
        assert all(own == set(rank.parameters) for rank, own in zip(self.ranks, loaded, strict=True))
        self.versions.append(version)


class Shards:
    """An actor worker whose rank holds a part of the rows of each weight; of some, all ranks hold all."""

    def __init__(self, tensors, rank, size, dtype, divided=True):
        self.tensors, self.rank, self.size, self.dtype, self.divided = tensors, rank, size, dtype, divided

    @contextmanager
    def sharded_weights(self, dtype=None):
        if not self.divided:
            yield None
            return
        found = []
        for name, tensor in self.tensors.items():
            start, stop = 0, len(tensor) if tensor.ndim else 0
            if tensor.ndim and name != "bias":
                each = -(-len(tensor) // self.size)
                start, stop = min(stop, self.rank * each), min(stop, (self.rank + 1) * each)
            box = ((start, stop), *((0, size) for size in tensor.shape[1:])) if tensor.ndim else ()
            if start < stop or not tensor.ndim:
                own = tensor[start:stop] if tensor.ndim else tensor
                found.append(Piece(name, tuple(tensor.shape), box, own, self.dtype))
        yield found


class Members:
    """Stands in for the calls of Ray: each call runs in a thread."""

    def __init__(self, hosts):
        self.pool = ThreadPoolExecutor(2 * len(hosts))
        self.members = [SimpleNamespace(rank=rank, world_size=len(hosts), host=self) for rank in range(len(hosts))]
        for member, host in zip(self.members, hosts, strict=True):
            member.host = SimpleNamespace(apply=SimpleNamespace(remote=self._remote(host)))

    def _remote(self, host):
        return lambda function, *arguments: self.pool.submit(function, host, *arguments)


class Waiter:
    def wait(self, calls, deadline, what):
        futures = [call.reference for call in calls]
        return [future.result(60) for future in futures]


class AllToAll:
    """In place of the group's: threads exchange their chunks."""

    def __init__(self, ranks):
        self.barrier, self.ranks = threading.Barrier(ranks), ranks
        self.inboxes = [[queue.SimpleQueue() for _ in range(ranks)] for _ in range(ranks)]
        self.bytes = 0

    def of(self, rank):
        def exchange(into, given, sizes_into, sizes):
            for to, chunk in enumerate(given.split(list(sizes))):
                self.inboxes[to][rank].put(chunk.clone())
                self.bytes += len(chunk) if to != rank else 0
            for chunk, inbox in zip(into.split(list(sizes_into)), self.inboxes[rank], strict=True):
                chunk.copy_(inbox.get(timeout=60))

        return exchange


class World:
    """Actors and rollout workers, each of them with one engine of ``engine_ranks``."""

    def __init__(self, monkeypatch, tensors, actors, engines, bucket_bytes=10_000, dtype=torch.float32):
        exchange = AllToAll(actors)
        local = threading.local()
        self.exchange, self.engines, self.bucket_bytes = exchange, engines, bucket_bytes
        monkeypatch.setattr(sharded, "_exchange", lambda *arguments: exchange.of(local.rank)(*arguments))
        self.workers = [Shards(tensors, rank, actors, dtype) for rank in range(actors)]
        self.actors = Members([self.host(each) for each in self.workers])
        readers = [SimpleNamespace(on_backend=lambda function, engine=engine: function(engine)) for engine in engines]
        self.readers = Members([self.host(each) for each in readers])
        send = sharded.send

        def named(host, verify):
            local.rank = host.worker.rank
            send(host, verify)

        self.send_one = named

    @staticmethod
    def host(worker):
        return SimpleNamespace(worker=worker, transport=None, timeout=60.0, address="127.0.0.1", others=())

    def plan(self):
        ask = sharded.Asking(Waiter(), 0.0, "test")
        return sharded.make(ask, self.actors.members, self.readers.members, self.bucket_bytes)

    def send(self, version, verify=False):
        calls = [Call(each, each.host.apply.remote(self.send_one, verify)) for each in self.actors.members]
        calls += [Call(each, each.host.apply.remote(sharded.receive, version, verify)) for each in self.readers.members]
        errors = [call.reference.exception(60) for call in calls]
        if any(errors):
            raise next(filter(None, errors))


class OtherNode:
    """Another node of an engine, whose host is here; it answers no more from call ``lost_at`` of a function."""

    def __init__(self):
        self.host, self.pool, self.is_lost = World.host(None), ThreadPoolExecutor(4), False
        self.lost_at = None, 0

    def apply(self, function, *args):
        when, left = self.lost_at
        if function is when:
            self.lost_at = when, left - 1
            self.is_lost = self.is_lost or not left
        step = None if self.is_lost else self.pool.submit(function, self.host, *args)

        def wait():
            while step is not None and not step.done() and not self.is_lost:
                time.sleep(0.001)
            if self.is_lost:
                raise EngineDeadError("the engine has lost its part on node 10.0.0.2: killed")
            return step.result(60)

        return wait


class ApartWorld(World):
    """Engines' ranks are in a group with the actor's ranks, over gloo."""

    def spread(self, nodes):
        """Let each engine cover so many nodes; returns the other nodes of each."""
        hosts = [each.host.apply.remote(lambda host: host).result(60) for each in self.readers.members]
        for host in hosts:
            host.others = [OtherNode() for _ in range(nodes - 1)]
        return [host.others for host in hosts]

    def plan(self):
        ask = sharded.Asking(Waiter(), 0.0, "test")
        return exchange.make(ask, self.actors.members, self.readers.members, self.bucket_bytes, "127.0.0.1")

    def send(self, version, verify=False, lost=(), how=None):
        """``lost`` rollout workers get no call, and end; the others leave."""
        calls = [Call(each, each.host.apply.remote(exchange.send, verify)) for each in self.actors.members]
        readers = [each for each in self.readers.members if each.rank not in lost]
        calls += [Call(each, each.host.apply.remote(exchange.receive, version, verify)) for each in readers]
        for each in self.readers.members:
            if each.rank in lost:
                each.host.apply.remote(how or end).result(60)
        if lost or any(isinstance(each.result(), Broken) for each in ended(calls)):
            for each in readers:
                each.host.apply.remote(exchange.leave).result(60)
        errors = [call.reference.exception(60) for call in calls]
        if any(errors):
            raise next(filter(None, errors))
        return [call.reference.result() for call in calls]


def ended(calls):
    """The calls that end without an error, as they do."""
    return (each for each in as_completed([call.reference for call in calls], 60) if not each.exception())


def end(host):
    """Close the connections of the process group, as the end of the process does."""
    for own in host.transport.ends:
        own.channel.group = None
    gc.collect()


def expected(tensors, ranks, dtype=torch.float32):
    """The parameters of an engine that has loaded whole weights."""
    engine = [Rank(rank, ranks, True, dtype) for rank in range(ranks)]
    for rank in engine:
        rank.load(tensors.items())
    return [rank.parameters for rank in engine]


def assert_loaded(engines, tensors, dtype=torch.float32):
    rounded = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    for engine in engines:
        for rank, parameters in zip(engine.ranks, expected(rounded, len(engine.ranks), dtype), strict=True):
            for name, tensor in parameters.items():
                assert torch.equal(rank.parameters[name], tensor), name
