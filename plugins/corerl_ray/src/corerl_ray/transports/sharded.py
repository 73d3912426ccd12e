"""From the actor's shards to the ranks of engines in its places: each needed element is sent once.

The plan (:mod:`corerl_torch.weights.plan`) is made once, from the pieces of the actor's ranks and the needs of the
engines' ranks. A transfer is a sequence of rounds. In each, the actor's ranks cast their parts into one buffer and
exchange them by one all-to-all (NCCL on GPUs, gloo without), which writes into memory that the engine's rank in the
same place reads: CUDA IPC on a GPU. One half of this memory is filled while the engine loads the other. The ranks of an
engine, and so the actor's, may be on several machines: rounds are announced to the engine's rollout worker.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from corerl.contracts.pieces import Box, Piece, ShardedStrategy
from corerl.errors import RunError
from corerl_ray.calls import Call, Waiter
from corerl_ray.host import WorkerHost
from corerl_ray.transports.link import Link, ReceiverGoneError, own_device
from corerl_ray.transports.shared_memory import Shared
from corerl_torch.weights import plan
from corerl_torch.weights.boxes import intersection, size
from corerl_torch.weights.digest import digests
from corerl_torch.weights.pieces import BackendWorker, Round, ShardedBackend

T = TypeVar("T")

HALVES = 2
"""of the memory of a port"""


@dataclass(frozen=True)
class Sends:
    """A rank's part in the plan: of each round, the bytes to and from each rank, and (name, box, offset) of parts."""

    rounds: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[str, Box, int], ...]], ...]
    half: int
    """bytes of a half of this rank's memory; 0: no engine's rank is here"""


@dataclass(frozen=True)
class Asking:
    """Calls of functions of members' hosts."""

    waiter: Waiter
    deadline: float
    what: str

    def __call__(self, members: Sequence[Any], function: Callable[..., Any], *arguments: Sequence[Any]) -> list[Any]:
        """The results by member; each of ``arguments`` has one value for each member."""
        given = zip(*arguments, strict=True) if arguments else [()] * len(members)
        calls = [
            Call(member, member.host.apply.remote(function, *own)) for member, own in zip(members, given, strict=True)
        ]
        return self.waiter.wait(calls, self.deadline, self.what)


Ask = Callable[..., list[Any]]
"""as :class:`Asking`"""


@dataclass(frozen=True)
class Planned:
    """A plan; ``receivers`` are those of each rollout worker, by the ranks of its engine."""

    plan: plan.Plan
    receivers: Sequence[Sequence[int]]


def planned(
    ask: Ask, actors: Sequence[Any], readers: Sequence[Any], bucket_bytes: int, *, apart: bool = False
) -> Planned | None:
    """Make the plan; None: an actor sends, or an engine loads, whole weights only.

    Args:
        bucket_bytes: most bytes of a process in a round.
        apart: the ranks of engines are processes beside the actor's ranks, after them; otherwise they have ports there.
    """
    layouts: list[list[tuple[plan.Weight, Box]] | None] = ask(actors, layout)
    if None in layouts:
        return None
    weights = {weight.name: weight for own in layouts for weight, _ in own or ()}
    named = [(weight.name, weight.shape, weight.dtype) for weight in weights.values()]
    needs: list[Any] = ask(readers, needs_of, [named] * len(readers))
    if None in needs:
        return None
    held: list[dict[str, list[Box]]] = []
    for own in layouts:
        boxes: dict[str, list[Box]] = {}
        for weight, box in own or ():
            boxes.setdefault(weight.name, []).append(box)
        held.append(boxes)
    numbers = itertools.count()
    receivers = [[next(numbers) for _ in of_reader] for of_reader in needs]
    places = len(actors) // readers[0].world_size
    ports = [
        len(actors) + receiver if apart else reader.rank * places + rank * places // len(own)
        for reader, own in zip(readers, receivers, strict=True)
        for rank, receiver in enumerate(own)
    ]
    held += [{} for _ in ports] if apart else []
    needed = [boxes for of_reader in needs for boxes in of_reader]
    return Planned(plan.make(weights.values(), held, needed, ports, bucket_bytes), receivers)


def make(ask: Ask, actors: Sequence[Any], readers: Sequence[Any], bucket_bytes: int) -> plan.Plan | None:
    """Make the plan, and give all processes their parts in it; None: as :func:`planned`."""
    found = planned(ask, actors, readers, bucket_bytes)
    if found is None:
        return None
    made, of = found.plan, found.receivers
    ports = [sorted({made.ports[each] for each in own}) for own in of]
    stores = {port: store for store, own in zip(ask(readers, listen), ports, strict=True) for port in own}
    ranks = range(len(actors))
    sources = ask(actors, arrange, [sends(made, rank) for rank in ranks], [stores.get(rank) for rank in ranks], ranks)
    plans = [[received(made, each, sources[made.ports[each]]) for each in own] for own in of]
    ask(readers, expect, plans, ports, [[places_in(made, each) for each in own] for own in of])
    return made


def sends(made: plan.Plan, rank: int) -> Sends:
    """The part of one of the actor's ranks."""
    rounds = []
    for each in made.rounds:
        parts = tuple((one.name, one.box, one.sent_at) for one in each.parts if one.sender == rank)
        rounds.append((each.bytes[rank], tuple(row[rank] for row in each.bytes), parts))
    return Sends(tuple(rounds), max((sum(taken) for _, taken, _ in rounds), default=0) if rank in made.ports else 0)


def received(made: plan.Plan, receiver: int, source: Any) -> dict[str, Any]:
    """For :meth:`corerl_torch.weights.pieces.ShardedBackend.expect`."""
    rounds = []
    for each in made.rounds:
        slots = []
        for one in each.parts:
            if one.receiver == receiver:
                weight = made.weights[one.name]
                slots.append(
                    [one.name, list(weight.shape), weight.dtype, [list(ends) for ends in one.box], one.received_at]
                )
        rounds.append(slots)
    return {"source": source, "rounds": rounds}


def places_in(made: plan.Plan, receiver: int) -> list[tuple[int, int]]:
    """Of each round, (offset, bytes) in the memory of the receiver's port."""
    port = made.ports[receiver]
    sizes = [sum(row[port] for row in each.bytes) for each in made.rounds]
    half = max(sizes, default=0)
    return [(half * (number % HALVES), size) for number, size in enumerate(sizes)]


def layout(host: WorkerHost) -> list[tuple[plan.Weight, Box]] | None:
    """In an actor worker: its boxes of every weight; None: it sends whole weights only."""
    if not isinstance(host.worker, ShardedStrategy):
        return None
    with host.worker.sharded_weights() as pieces:
        return None if pieces is None else [(_weight(piece), piece.box) for piece in pieces]


def _weight(piece: Piece) -> plan.Weight:
    return plan.Weight(piece.name, piece.shape, str(piece.dtype).removeprefix("torch."), piece.dtype.itemsize)


def needs_of(host: WorkerHost, weights: Sequence[tuple[str, Sequence[int], str]]) -> Any:
    """In a rollout worker: the needs of its engine's ranks; None: it loads whole weights only."""
    if not isinstance(host.worker, BackendWorker):
        return None
    return host.worker.on_backend(
        lambda backend: backend.needs(weights) if isinstance(backend, ShardedBackend) else None
    )


class Filling:
    """An actor worker's buffers, filled in turn; their views stay the same from one update to the next."""

    def __init__(self, own: Sends, device: torch.device, buffers: int = 1) -> None:
        self.own, self.device, self.buffers = own, device, buffers
        self._layout: list[tuple[str, Box]] = []
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._rounds: list[list[_Filled]] = []

    def rounds(self, host: WorkerHost, verify: bool) -> Iterator[tuple[Sequence[int], Sequence[int], Tensor]]:
        """Of each round: the bytes to and from each process, and the buffer, filled.

        The buffer of a round is filled again ``buffers`` rounds later, when the next round is requested.

        Raises:
            RunError: the worker's pieces are others than those of the plan.
        """
        with cast(ShardedStrategy, host.worker).sharded_weights() as pieces:
            self._prepare(pieces or ())
            for number, ((given, taken, _), parts) in enumerate(zip(self.own.rounds, self._rounds, strict=True)):
                self._fill(pieces or (), parts, verify)
                yield given, taken, self._memory[self._base(number) :][: sum(given)]

    @property
    def _room(self) -> int:
        """Bytes of a buffer."""
        most = max((sum(given) for given, _, _ in self.own.rounds), default=0)
        return -(-most // plan.ALIGNMENT) * plan.ALIGNMENT

    def _base(self, round_number: int) -> int:
        return self._room * (round_number % self.buffers)

    def _prepare(self, pieces: Sequence[Piece]) -> None:
        layout = [(piece.name, piece.box) for piece in pieces]
        if not self._layout:
            size = self.buffers * self._room
            self._memory, self._layout = torch.empty(size, dtype=torch.uint8, device=self.device), layout
            numbers: dict[str, list[int]] = {}
            for number, (name, _) in enumerate(layout):
                numbers.setdefault(name, []).append(number)
            self._rounds = [
                [
                    self._part(pieces, numbers.get(name, ()), name, box, self._base(number) + offset)
                    for name, box, offset in parts
                ]
                for number, (_, _, parts) in enumerate(self.own.rounds)
            ]
        elif layout != self._layout:
            changed = next((name for name, _ in {*self._layout} ^ {*layout}), layout[0][0] if layout else "")
            raise RunError(
                f"this rank's parts of the weight '{changed}' are not those of the plan: they must stay the same"
            )

    def _part(self, pieces: Sequence[Piece], own: Sequence[int], name: str, box: Box, offset: int) -> "_Filled":
        number = next((each for each in own if intersection(pieces[each].box, box) == box), None)
        if number is None:
            raise RunError(f"this rank no longer holds its part of the weight '{name}'")
        piece, start = pieces[number], offset + plan.ALIGNMENT
        flat = self._memory[start : start + size(box) * piece.dtype.itemsize].view(piece.dtype)
        to = flat.view([stop - start for start, stop in box])
        cuts = tuple(
            (dim, start - origin, stop - start)
            for dim, ((start, stop), (origin, end)) in enumerate(zip(box, piece.box, strict=True))
            if (start, stop) != (origin, end)
        )
        return _Filled(number, cuts, to, self._memory[offset : offset + 8].view(torch.int64))

    @torch.no_grad()
    def _fill(self, pieces: Sequence[Piece], parts: "Sequence[_Filled]", verify: bool) -> None:
        """Cast the parts of a round into the buffer, each behind its digest."""
        values = []
        for each in parts:
            tensor = pieces[each.number].tensor
            for dim, start, length in each.cuts:
                tensor = tensor.narrow(dim, start, length)
            values.append(tensor)
        if parts:
            torch._foreach_copy_([each.to for each in parts], values, non_blocking=True)
        if parts and verify:
            taken = digests([each.to for each in parts])
            torch._foreach_copy_([each.digest for each in parts], taken[:, None].unbind(), non_blocking=True)


@dataclass(frozen=True)
class _Filled:
    """A part in the buffer: the number of its piece, (dimension, start, length) of cuts, views of values and digest."""

    number: int
    cuts: tuple[tuple[int, int, int], ...]
    to: Tensor
    digest: Tensor


@dataclass
class Sender:
    """An actor worker's end: its buffer, and the memory that engines' ranks in its place read.

    Attributes:
        link: to the rollout worker; None: no engine's rank is in this place, or the rollout worker has ended.
    """

    filling: Filling
    link: Link | None = None
    shared: Shared | None = None

    def reach(self, step: Callable[[Link], None]) -> None:
        """Do a step of the link as long as the rollout worker is there."""
        if self.link is not None:
            try:
                step(self.link)
            except ReceiverGoneError:
                self.link = None

    def free(self, number: int) -> None:
        """Wait until the rollout worker has done with a round."""
        if number > 0:
            self.reach(lambda link: link.confirmed(number))


def listen(host: WorkerHost) -> tuple[str, int]:
    """In a rollout worker: open a store; returns its address and port."""
    address = host.address if host.others else "127.0.0.1"
    host.transport = Link.listen(address, host.timeout)
    return address, int(host.transport.port)


def arrange(host: WorkerHost, own: Sends, store: tuple[str, int] | None, rank: int) -> Any:
    """In an actor worker: prepare; returns the description of its memory for engines.

    Args:
        store: of the rollout worker whose engine has ranks in this place.
    """
    if isinstance(host.transport, Sender) and host.transport.shared is not None:
        host.transport.shared.close()
    device = own_device()
    sender = host.transport = Sender(Filling(own, device))
    if not own.half or store is None:
        return None
    sender.link = Link.connect(*store, host.timeout, str(rank))
    sender.shared = Shared.new(HALVES * own.half, device)
    return sender.shared.source


def expect(
    host: WorkerHost, plans: Sequence[Mapping[str, Any]], ports: Sequence[int], places: Sequence[Sequence[Any]]
) -> None:
    """In a rollout worker: know the actor's ranks in the places of its engine's, and pass the plan on."""
    link: Link = host.transport
    host.transport = Reader([Link(link.store, link.timeout, str(port)) for port in ports], places)
    worker = cast(BackendWorker, host.worker)
    worker.on_backend(lambda backend: cast(ShardedBackend, backend).expect(plans))


def send(host: WorkerHost, verify: bool) -> None:
    """In every actor worker: exchange, and announce the rounds."""
    sender: Sender = host.transport
    sender.reach(Link.begin)
    for number, (given, taken, buffer) in enumerate(sender.filling.rounds(host, verify), 1):
        sender.free(number - HALVES)
        into = buffer.new_empty(0)
        if sender.shared is not None:
            into = sender.shared.data[sender.filling.own.half * ((number - 1) % HALVES) :][: sum(taken)]
        _exchange(into, buffer, taken, given)
        if into.is_cuda and sender.shared is not None:
            torch.cuda.current_stream().synchronize()
        sender.reach(functools.partial(Link.send, number=number, message=""))
    for last in range(HALVES):
        sender.free(len(sender.filling.own.rounds) - last)


def _exchange(into: Tensor, given: Tensor, sizes_into: Sequence[int], sizes: Sequence[int]) -> None:
    if len(sizes) == 1:
        into.copy_(given)
    else:
        dist.all_to_all_single(into, given, list(sizes_into), list(sizes))


@dataclass
class Reader:
    """A rollout worker's end: links from the ports of its engine's ranks; the place of each round in their memory."""

    links: Sequence[Link]
    places: Sequence[Sequence[tuple[int, int]]]
    arrived: int = 0
    finished: int = 0

    def rounds(self) -> Iterator[Round]:
        """As they arrive; each must be done before the one after the next can arrive."""
        self.arrived = self.finished = 0
        for link in self.links:
            link.transfer += 1
        for number in range(len(self.places[0])):
            for link in self.links:
                link.receive(number + 1)
            self.arrived = number + 1
            yield Round(number, [own[number] for own in self.places], self.done)

    def done(self) -> None:
        """Free the first round that is not."""
        self.finished += 1
        for link in self.links:
            link.confirm(self.finished)


def receive(host: WorkerHost, version: int, verify: bool) -> None:
    """In a rollout worker: receive and load."""
    reader: Reader = host.transport
    rounds = reader.rounds()
    worker = cast(BackendWorker, host.worker)
    try:
        worker.on_backend(lambda backend: cast(ShardedBackend, backend).update_pieces(rounds, version, verify=verify))
    finally:
        while reader.finished < reader.arrived:  # after a failure: other engines need the rest of the exchanges
            reader.done()
        for each in rounds:
            each.done()
