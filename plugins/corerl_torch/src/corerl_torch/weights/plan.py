"""The plan of a transfer of weights from sharded to sharded: every needed element is sent once, by one sender.

Senders and receivers state their boxes of every weight. The plan intersects them once, and lays the parts out in
rounds: a round is one all-to-all among the processes that send, each of which also receives for the receivers at it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from corerl.contracts.pieces import Box
from corerl.errors import RunError
from corerl_torch.weights.boxes import disjoint, intersection, size, without

ALIGNMENT = 16
"""bytes: every part starts at a multiple, behind as many bytes with its digest"""


@dataclass(frozen=True)
class Weight:
    """A weight on its way: ``itemsize`` is that of the dtype in which it is sent."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int


@dataclass(frozen=True)
class Part:
    """One box of one weight, from one sender to one receiver.

    Attributes:
        sent_at, received_at: offsets of its digest in the sender's bytes of the round, and in those received at the
            receiver's port; the values follow after :data:`ALIGNMENT` bytes.
    """

    name: str
    box: Box
    sender: int
    receiver: int
    sent_at: int
    received_at: int


@dataclass(frozen=True)
class Round:
    """One all-to-all.

    Attributes:
        bytes: [sender][port], what a sender gives to a port.
    """

    bytes: tuple[tuple[int, ...], ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Plan:
    """
    Attributes:
        ports: of each receiver, the process among the senders that receives for it.
        values: bytes of values that receivers need.
        crossing: those of them whose sender is not the receiver's port.
    """

    weights: Mapping[str, Weight]
    ports: tuple[int, ...]
    rounds: tuple[Round, ...]
    values: int
    crossing: int

    def room(self) -> tuple[int, int]:
        """The most bytes that one process sends, and receives, in a round."""
        sent = max((sum(row) for each in self.rounds for row in each.bytes), default=0)
        received = max((sum(column) for each in self.rounds for column in zip(*each.bytes, strict=True)), default=0)
        return sent, received


Boxes = Mapping[str, Sequence[Box]]
"""name of a weight -> boxes of it"""


def make(
    weights: Iterable[Weight],
    held: Sequence[Boxes],
    needed: Sequence[Boxes],
    ports: Sequence[int],
    round_bytes: int,
) -> Plan:
    """
    Args:
        weights: in the order in which they are sent; a weight is never divided among rounds.
        held: by sender; boxes of several senders may overlap, as those of replicas do.
        needed: by receiver; elements in several boxes of a receiver are sent to it once.
        ports: by receiver, its port, which is preferred as sender.
        round_bytes: most bytes that a process sends, and receives, in a round of several weights; or as many as the
            largest weight has, whose memory is needed anyway.

    Raises:
        RunError: a needed element is held by no sender, or a weight is unknown.
    """
    by_name = {weight.name: weight for weight in weights}
    for boxes in needed:
        if unknown := next((name for name in boxes if name not in by_name), None):
            raise RunError(f"the engine needs the weight '{unknown}', which the policy does not have")
    load = [0] * len(held)
    rounds: list[Round] = []
    values = crossing = 0
    layout = _Layout(len(held), ports)
    moved = [(weight, list(_moves(weight, held, needed, ports, load))) for weight in by_name.values()]
    most = max([round_bytes, *(layout.most(weight, moves) for weight, moves in moved)])
    for weight, moves in moved:
        values += sum(size(box) for _, _, box in moves) * weight.itemsize
        crossing += sum(size(box) for sender, to, box in moves if sender != ports[to]) * weight.itemsize
        if layout.moves and layout.most(weight, moves) > most:
            rounds.append(layout.taken())
        layout.add(weight, moves)
    if layout.moves:
        rounds.append(layout.taken())
    return Plan(by_name, tuple(ports), tuple(rounds), values, crossing)


Move = tuple[int, int, Box]
"""sender, receiver, box"""


def _moves(
    weight: Weight, held: Sequence[Boxes], needed: Sequence[Boxes], ports: Sequence[int], load: list[int]
) -> Iterable[Move]:
    """Of one weight; ``load``, the bytes of each sender so far, is counted up."""
    holders = [sender for sender, boxes in enumerate(held) if boxes.get(weight.name)]
    for receiver, boxes in enumerate(needed):
        missing = disjoint(boxes.get(weight.name, ()))
        for sender in sorted(holders, key=lambda each: (each != ports[receiver], load[each], each)):
            for own in held[sender][weight.name]:
                missing, found = _divided(missing, own)
                for box in found:
                    load[sender] += size(box) * weight.itemsize
                    yield sender, receiver, box
            if not missing:
                break
        if missing:
            raise RunError(
                f"no worker of the policy holds {_text(missing[0])} of the weight '{weight.name}' "
                f"{list(weight.shape)}, which an engine needs"
            )


def _divided(boxes: Iterable[Box], own: Box) -> tuple[list[Box], list[Box]]:
    """The parts of boxes outside ``own``, and those in it."""
    outside: list[Box] = []
    inside: list[Box] = []
    for box in boxes:
        common = intersection(box, own)
        if common is None:
            outside.append(box)
        else:
            inside.append(common)
            outside += without(box, common)
    return outside, inside


def _text(box: Box) -> str:
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in box) + "]"


class _Layout:
    """The moves of the round under way: a sender's bytes for a port are together, ordered by receiver."""

    def __init__(self, senders: int, ports: Sequence[int]) -> None:
        self.senders, self.ports = senders, ports
        self.moves: list[tuple[Weight, Move]] = []
        self._sent, self._received = [0] * senders, [0] * senders

    def most(self, weight: Weight, moves: Iterable[Move]) -> int:
        """The most bytes that a process sends or receives in the round with one more weight."""
        sent, received = self._sent.copy(), self._received.copy()
        self._count(weight, moves, sent, received)
        return max(*sent, *received)

    def add(self, weight: Weight, moves: Iterable[Move]) -> None:
        self._count(weight, moves, self._sent, self._received)
        self.moves += [(weight, move) for move in moves]

    def _count(self, weight: Weight, moves: Iterable[Move], sent: list[int], received: list[int]) -> None:
        for sender, receiver, box in moves:
            sent[sender] += _bytes(weight, box)
            received[self.ports[receiver]] += _bytes(weight, box)

    def taken(self) -> Round:
        """The round; the next one begins."""
        ordered = sorted(self.moves, key=lambda each: (each[1][0], self.ports[each[1][1]], each[1][1]))
        chunks = [[0] * self.senders for _ in range(self.senders)]
        inside = []
        for weight, (sender, receiver, box) in ordered:
            port = self.ports[receiver]
            inside.append(chunks[sender][port])
            chunks[sender][port] += _bytes(weight, box)
        parts = []
        for (weight, (sender, receiver, box)), offset in zip(ordered, inside, strict=True):
            port = self.ports[receiver]
            sent_at = sum(chunks[sender][:port]) + offset
            received_at = sum(row[port] for row in chunks[:sender]) + offset
            parts.append(Part(weight.name, box, sender, receiver, sent_at, received_at))
        self.moves, self._sent, self._received = [], [0] * self.senders, [0] * self.senders
        return Round(tuple(map(tuple, chunks)), tuple(parts))


def _bytes(weight: Weight, box: Box) -> int:
    """Of a part with its digest, aligned."""
    return ALIGNMENT + -(-size(box) * weight.itemsize // ALIGNMENT) * ALIGNMENT
