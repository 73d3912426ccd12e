"""The ranks of a stand-in for an engine, each in a process of its own: none can open CUDA memory that it shares."""

import multiprocessing
import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from weights import DEVICE, shapes, synchronize

from corerl.contracts.pieces import Box
from corerl_engines.remote import pieces, weights
from corerl_torch.weights.digest import digest, digests

SENT = torch.bfloat16
COLUMNS = ("o_proj.weight", "down_proj.weight")
FUSED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
PATIENCE = 120.0
"""seconds for an answer of a rank"""


def divided(name: str, shape: Sequence[int], ranks: int) -> int | None:
    """The dimension that tensor parallel divides; None: every rank has the whole weight."""
    if name.endswith(COLUMNS):
        return 1
    is_row = any(part in name for part in (*FUSED, "embed_tokens", "lm_head"))
    return 0 if is_row and shape[0] % ranks == 0 else None


class EngineRank:
    """The parameters of one rank of an engine, and a loader as the engines have."""

    def __init__(self, shape: str, rank: int, ranks: int, device: int) -> None:
        if DEVICE == "cuda":
            torch.cuda.set_device(device)
        self.device = torch.device("cuda", device) if DEVICE == "cuda" else torch.device("cpu")
        self.rank, self.ranks = rank, ranks
        sizes = dict(shapes(shape))
        rows: dict[str, int] = {}
        self.places: dict[str, tuple[str, int, int]] = {}
        """name -> parameter, first row, rows"""
        for name, size in sizes.items():
            last = next((each for each in FUSED if f".{each}." in name), None)
            own = name if last is None else name.replace(last, FUSED[last])
            dim = divided(name, size, ranks)
            length = size[0] // ranks if dim == 0 else size[0]
            self.places[name] = own, rows.get(own, 0), length
            rows[own] = rows.get(own, 0) + length
        self.parameters: dict[str, Tensor] = {}
        for name, (own, _, _) in self.places.items():
            rest = list(sizes[name][1:])
            if divided(name, sizes[name], ranks) == 1:
                rest[0] //= ranks
            self.parameters[own] = torch.zeros(rows[own], *rest, dtype=SENT, device=self.device)

    def load(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Copy this rank's part of each weight."""
        for name, tensor in named:
            own, first, length = self.places[name]
            dim = divided(name, tensor.shape, self.ranks)
            if dim is not None:
                each = tensor.shape[dim] // self.ranks
                tensor = tensor.narrow(dim, self.rank * each, each)
            self.parameters[own].narrow(0, first, length).copy_(tensor, non_blocking=True)

    def read(self, bucket: Mapping[str, Any]) -> None:
        """Load whole weights."""
        self.load(weights.read(bucket))
        synchronize()

    def needs(self, named: Sequence[tuple[str, Sequence[int], str]]) -> dict[str, list[Box]]:
        """The boxes of each weight that this rank needs."""
        self.found = pieces.find(self.load, named)
        boxes = self.found.reads.boxes
        return {name: [tuple((a, b) for a, b in box) for box in each] for name, each in boxes.items()}

    def expect(self, plan: Mapping[str, Any]) -> None:
        """Open the memory of a plan."""
        self.receiver = pieces.Receiver(self.found, plan, True, self.device, digests)

    def begin(self) -> None:
        """The first round of an update follows."""
        self.receiver.begin()

    def take(self, number: int, place: Sequence[int], verify: bool) -> list[str]:
        """Load a round; the names of changed weights."""
        with torch.no_grad():
            changed, _ = self.receiver.take(number, *place, verify=verify)
        synchronize()
        return changed

    def sums(self) -> list[int]:
        """The digest of every parameter."""
        return [int(digest(each, SENT)) for each in self.parameters.values()]


class Engine:
    """Processes with a rank each."""

    def __init__(self, shape: str, ranks: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.ends, self.threads = [], ThreadPoolExecutor(ranks)
        for rank in range(ranks):
            own, other = context.Pipe()
            context.Process(target=serve, args=(other, shape, rank, ranks), daemon=True).start()
            self.ends.append(own)

    def ask(self, name: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """Call a method of every rank, each with arguments of its own."""
        return list(self.threads.map(lambda end, own: self._ask(end, name, own), self.ends, arguments))

    def tell(self, name: str, arguments: Sequence[Sequence[Any]]) -> None:
        """Begin :meth:`ask`; ranks take calls in order."""
        for end, own in zip(self.ends, arguments, strict=True):
            end.send((name, own))

    def answers(self, name: str) -> list[Any]:
        """Those to the oldest call of :meth:`tell`."""
        return list(self.threads.map(lambda end: self._answer(end, name), self.ends))

    def _ask(self, end: Any, name: str, arguments: Sequence[Any]) -> Any:
        end.send((name, arguments))
        return self._answer(end, name)

    def _answer(self, end: Any, name: str) -> Any:
        if not end.poll(PATIENCE):
            raise TimeoutError(f"{name} did not end within {PATIENCE:g} s")
        result, error = end.recv()
        if error:
            raise RuntimeError(error)
        return result


def serve(end: Any, shape: str, rank: int, ranks: int) -> None:
    """Answer calls until the other side is gone."""
    own = EngineRank(shape, rank, ranks, rank)
    while True:
        try:
            name, arguments = end.recv()
        except EOFError:
            return
        try:
            end.send((getattr(own, name)(*arguments), None))
        except Exception:
            end.send((None, traceback.format_exc()))
