"""Time of every installed estimator and loss beside one copy of its tensors, at the size of a large batch, on the CPU.

Estimators, policy losses and value losses come from the registries, with their default options. Each takes turns with
a copy of the tensors that it reads and writes, ``--repeats`` times, and the medians are compared:

* a tensor that it reads is copied with ``copy_`` into memory that is there already, since reading takes no new memory;
* a tensor that it returns is cloned, since it must come from new memory too. Advantages and returns that are one tensor
  are copied once. For a large tensor on Linux the first touch of new pages is most of the time.

Estimators get the batch in one piece. Losses get micro-batches of ``--micro-batch-tokens``, as from the core, or with
``--whole`` one piece; their forward is timed without autograd's graph and with it.

    python benchmarks/algorithm_speed.py --rows 4096 --tokens 8192 --only grpo
"""

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageInputs
from corerl.contracts.policy_losses import PolicyLossInputs
from corerl.contracts.value_losses import ValueLossInputs
from corerl.plugins import Plugins
from corerl.registry import Registry, Selected

LIMIT = 3.0
GROUP = 8


class Case(NamedTuple):
    """What is timed, piece by piece: ``run`` gives the tensors that it writes, ``reads`` those that it reads."""

    kind: str
    name: str
    pieces: int
    run: Callable[[int], tuple[Tensor, ...]]
    reads: Callable[[int], tuple[Tensor, ...]]


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads or torch.get_num_threads())
    results = [_measure(case, arguments.repeats) for case in _cases(arguments)]
    if not results:
        sys.exit(f"no installed plugin registers an estimator or a loss {' or '.join(arguments.only)}")
    _print(results, arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="estimators and losses; all by default")
    parser.add_argument("--holes", action="store_true", help="tokens of a tool in the middle of every response")
    parser.add_argument("--micro-batch-tokens", type=int, default=131072)
    parser.add_argument("--whole", action="store_true", help="losses get the batch in one piece")
    parser.add_argument("--repeats", type=int, default=5, help="of each, after one that warms up")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: its default")
    return parser.parse_args()


def _mask(arguments: argparse.Namespace) -> Tensor:
    """Responses of a quarter of the tokens to all of them."""
    steps = torch.arange(arguments.tokens)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(arguments.tokens // 4, arguments.tokens + 1, (arguments.rows, 1), generator=generator)
    mask = steps < lengths
    if arguments.holes:
        mask &= (steps < lengths // 3) | (steps >= lengths // 2)
    return mask


class Batch:
    """Tensors of the batch, 0 outside ``mask``; each is made when it is first wanted and then kept."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self._generator = torch.Generator().manual_seed(1)
        self._kept: dict[str, Tensor] = {}

    def normal(self, name: str) -> Tensor:
        if name not in self._kept:
            self._kept[name] = torch.randn(self.mask.shape, generator=self._generator).mul_(self.mask)
        return self._kept[name]

    def log_probs(self, name: str) -> Tensor:
        if name not in self._kept:
            self._kept[name] = self.normal(name).abs_().neg_()
        return self._kept[name]

    def advantages(self) -> Tensor:
        if "advantages" not in self._kept:
            self._kept["advantages"] = torch.randn(len(self.mask), 1, generator=self._generator) * self.mask
        return self._kept["advantages"]


def _cases(arguments: argparse.Namespace) -> Iterator[Case]:
    registries = Plugins().registries
    batch = Batch(_mask(arguments))

    def asked_for(registry: Registry[Any]) -> Iterator[Selected[Any]]:
        yield from (
            registry.select(entry.name) for entry in registry if not arguments.only or entry.name in arguments.only
        )

    for selected in asked_for(registries.advantage_estimators):
        yield _estimator(selected, batch)
    rows = len(batch.mask) if arguments.whole else max(1, arguments.micro_batch_tokens // arguments.tokens)
    for selected in asked_for(registries.policy_losses):
        yield from _policy_loss(selected, batch, rows)
    for selected in asked_for(registries.value_losses):
        yield from _value_loss(selected, batch, rows)


def _estimator(selected: Selected[Any], batch: Batch) -> Case:
    entry, estimate, mask = selected.entry, selected.load(), batch.mask
    last = torch.where(mask, torch.arange(mask.shape[1]), -1).amax(dim=1)
    scores = torch.rand(len(mask), generator=torch.Generator().manual_seed(2)).round()
    inputs = AdvantageInputs(
        torch.zeros(mask.shape).scatter_(1, last[:, None], scores[:, None]),
        mask,
        torch.arange(len(mask)) // GROUP,
        values=batch.normal("values") if "critic" in entry.needs else None,
        greedy_scores=scores.flip(0),
        log_probs=batch.log_probs("policy") if "sum_pi_squared" in entry.needs else None,
        sum_pi_squared=(2 * batch.log_probs("policy")).exp_() if "sum_pi_squared" in entry.needs else None,
        components={"accuracy": scores, "format": scores.flip(0)},
    )
    large = tuple(t for t in vars(inputs).values() if isinstance(t, Tensor) and t.dim() == 2)
    return Case("estimator", entry.name, 1, lambda _: _distinct(*estimate(inputs)), lambda _: large)


def _distinct(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple({id(tensor): tensor for tensor in tensors}.values())


def _policy_loss(selected: Selected[Any], batch: Batch, rows: int) -> Iterator[Case]:
    entry, loss, select_tokens = selected.entry, selected.load(), selected.load_fact("select_tokens")
    log_probs, old, advantages, mask = batch.log_probs("policy"), batch.log_probs("old"), batch.advantages(), batch.mask
    reference = batch.log_probs("reference") if "ref" in entry.needs else None
    whole = PolicyLossInputs(log_probs, old, advantages, mask, old, reference)
    selected_tokens = None
    if select_tokens is not None:
        selected_tokens = select_tokens(whole, torch.rand(mask.shape, dtype=torch.float64))
    large = [log_probs, old, advantages, mask, reference, selected_tokens]

    def inputs(piece: int, graph: bool) -> PolicyLossInputs:
        part = slice(piece * rows, (piece + 1) * rows)
        return PolicyLossInputs(
            log_probs[part].requires_grad_(graph),
            old[part],
            advantages[part],
            mask[part],
            old[part],
            None if reference is None else reference[part],
            None if selected_tokens is None else selected_tokens[part],
        )

    yield from _loss("policy loss", entry.name, loss, inputs, [t for t in large if t is not None], rows)


def _value_loss(selected: Selected[Any], batch: Batch, rows: int) -> Iterator[Case]:
    large = [batch.normal("new values"), batch.normal("values"), batch.normal("returns"), batch.mask]

    def inputs(piece: int, graph: bool) -> ValueLossInputs:
        parts = [tensor[piece * rows : (piece + 1) * rows] for tensor in large]
        return ValueLossInputs(parts[0].requires_grad_(graph), parts[1], parts[2], parts[3])

    yield from _loss("value loss", selected.entry.name, selected.load(), inputs, large, rows)


def _loss(
    kind: str, name: str, loss: Any, inputs: Callable[[int, bool], Any], large: list[Tensor], rows: int
) -> Iterator[Case]:
    def run(piece: int, *, graph: bool) -> tuple[Tensor, ...]:
        with torch.set_grad_enabled(graph):
            return (loss(inputs(piece, graph)).terms,)

    def reads(piece: int) -> tuple[Tensor, ...]:
        return tuple(tensor[piece * rows : (piece + 1) * rows] for tensor in large)

    pieces = -(-len(large[0]) // rows)
    yield Case(kind, name, pieces, functools.partial(run, graph=False), reads)
    yield Case(f"{kind} + graph", name, pieces, functools.partial(run, graph=True), reads)


def _measure(case: Case, repeats: int) -> dict[str, Any]:
    buffers = [torch.empty_like(tensor) for tensor in case.reads(0)]
    written = [torch.zeros_like(tensor) for tensor in case.run(0)]

    def copy(piece: int) -> list[Tensor]:
        for buffer, tensor in zip(buffers, case.reads(piece), strict=True):
            buffer[: len(tensor)].copy_(tensor)
        return [tensor.clone() for tensor in written]

    times: dict[Any, list[float]] = {case.run: [], copy: []}
    for turn in range(repeats + 1):
        for contender, taken in times.items():
            started = time.perf_counter()
            for piece in range(case.pieces):
                contender(piece)
            if turn:
                taken.append(1000 * (time.perf_counter() - started))
    milliseconds, of_copy = (statistics.median(taken) for taken in times.values())
    ratio = milliseconds / of_copy
    return {"kind": case.kind, "name": case.name, "ms": milliseconds, "copy_ms": of_copy, "ratio": ratio}


def _print(results: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    table = Table(title=f"{arguments.rows} x {arguments.tokens}, float32, {torch.get_num_threads()} threads")
    for column in ("kind", "name", "ms", "copy, ms", "ratio", f"at most {LIMIT:g}"):
        table.add_column(column, justify="left" if column in ("kind", "name") else "right", no_wrap=True)
    for result in results:
        verdict = "ok" if result["ratio"] <= LIMIT else "missed"
        numbers = (f"{result['ms']:.1f}", f"{result['copy_ms']:.1f}", f"{result['ratio']:.2f}")
        table.add_row(result["kind"], result["name"], *numbers, verdict)
    Console(width=100).print(table)
    print(json.dumps({**vars(arguments), "threads": torch.get_num_threads(), "results": results}))


if __name__ == "__main__":
    main()
