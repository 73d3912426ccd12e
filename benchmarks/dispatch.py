"""The controller's time of a step's calls on many ranks, with the rows in another process.

    python benchmarks/dispatch.py --ranks 64 256 1024 --rows 16384

A step is two calls of ``forward``, whose outputs stay, and four updates. All calls are real calls of Ray. The ranks
compute nothing: one process stands for all of them, and a few processes stand for all relays. ``--direct`` calls each
rank without a relay.

Wall time: this machine's cores do the work of all nodes, one after the other. So the controller is also timed with
relays that answer at once, and one relay with its ranks alone; a step on a cluster takes about the sum of both.
"""

import argparse
import dataclasses
import time
from typing import Any, NamedTuple

import ray
import torch

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.dispatch import Place, dispatch
from corerl.contracts.experience import Experience, collate
from corerl.contracts.runtimes import Role
from corerl.contracts.token_outputs import TokenOutputs
from corerl_ray.group import Group, keep, pending
from corerl_ray.kept import KeptRows
from corerl_ray.options import RayOptions
from corerl_ray.relay import MOST, RELAY_THREADS, Answer, Order, Relay, Relays, divided
from corerl_ray.runtime import RayRuntime

REQUIRED = 0.5
"""seconds a step, of 1,024 ranks"""
RELAYS = 4
"""processes that stand for all relays"""


class Rank:
    """Every rank, and the process of the rows."""

    def rows(self, count: int) -> Experience:
        """So many, eight to a prompt, of 3 to 34 tokens."""
        lengths = torch.randint(1, 33, (count,), generator=torch.Generator().manual_seed(0)).tolist()
        return collate([[1, 2]] * count, [[3] * length for length in lengths], [row // 8 for row in range(count)])

    @dispatch("split")
    def forward(self, batch: Experience) -> TokenOutputs:
        return TokenOutputs(log_probs=torch.zeros(batch.response_mask.shape))

    @dispatch("split", merge="rank_zero")
    def update(self, batch: Experience) -> dict[str, float]:
        return {}

    @dispatch("rank_zero")
    def put(self, outputs: Any) -> None: ...


class AtOnce(Relay):
    """A relay whose ranks are not called."""

    def pass_on(self, order: Order) -> Any:
        results: dict[int, Any] = {place: {} if place in order.wanted else None for place in range(len(order.given))}
        answer = Answer(results, is_over=True)
        return (answer, []) if order.method == "keep" else answer


class Spent(NamedTuple):
    processor: float
    wall: float


def step(one: Any, ranks: Any, rows: int, *, reads: bool) -> Spent:
    """Of the controller's process; ``reads``: the outputs are read by the process of the rows, as in a run."""
    known, reference = keep(one.members[0], "rows", [rows], {})
    [numbers] = pending(one, "rows", [known], lambda results: results).result()
    whole = KeptRows.of([reference], numbers, [torch.arange(rows)])
    quarters = torch.arange(rows).chunk(4)
    start, began = time.process_time(), time.perf_counter()
    for _ in range(2):
        outputs = ranks.forward(whole)
        if reads:
            one.put(outputs)
    for own in quarters:
        ranks.update(whole.select(own))
    return Spent(time.process_time() - start, time.perf_counter() - began)


def relayed(group: Group, actor: type) -> Any:
    """The group with relays of this class, in :data:`RELAYS` processes."""
    first, parts = group.members[0], divided(group.members)
    remote: Any = ray.remote(concurrency_groups=RELAY_THREADS)  # type: ignore[call-overload]
    hosts = [remote(actor).options(num_cpus=0, max_concurrency=1).remote(".", [], 600.0) for _ in range(RELAYS)]
    ray.get([host.know.remote([first.host] * MOST) for host in hosts])
    relays = [
        dataclasses.replace(first, host=hosts[index % RELAYS], facts=None, ranks=own) for index, own in enumerate(parts)
    ]
    return dataclasses.replace(group, relays=Relays(tuple(relays)))


def of_size(one: Group, count: int) -> Group:
    """So many ranks in one process."""
    members = tuple(dataclasses.replace(one.members[0], rank=rank, world_size=count) for rank in range(count))
    return dataclasses.replace(one, members=members, places=tuple(Place(rank, count) for rank in range(count)))


def best(one: Any, ranks: Any, rows: int, steps: int, *, reads: bool) -> Spent:
    """The least of each, after a first step."""
    spent = [step(one, ranks, rows, reads=reads) for _ in range(steps + 1)][1:]
    return Spent(min(each.processor for each in spent), min(each.wall for each in spent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--direct", action="store_true", help="without relays")
    given = parser.parse_args()
    runtime = RayRuntime(RuntimeConfig(name="ray"), RayOptions(workers=1))
    try:
        one: Any = runtime.spawn(Role("actor", "actor.strategy", "stub", distributed=True), Rank)
        print("ranks  relays  processor s  wall s, all on this machine  wall s, relays answer at once", flush=True)
        for count in given.ranks:
            group = of_size(one, count)
            if given.direct:
                spent, quick, relays = best(one, group, given.rows, given.steps, reads=True), "", 0
            else:
                ranks = relayed(group, Relay)
                spent, relays = best(one, ranks, given.rows, given.steps, reads=True), len(ranks.relays.members)
                quick = f"{best(one, relayed(group, AtOnce), given.rows, given.steps, reads=False).wall:.2f}"
            print(f"{count:5} {relays:7} {spent.processor:12.2f} {spent.wall:28.2f} {quick:>30}", flush=True)
        if not given.direct:
            ranks, rows = relayed(of_size(one, MOST), Relay), MOST * given.rows // given.ranks[-1]
            alone = best(one, ranks, rows, given.steps, reads=True).wall
            print(f"one relay with its {MOST} ranks alone: {alone:.2f} s of wall time a step")
        print(f"required of 1,024 ranks: at most {REQUIRED} s of processor")
    finally:
        runtime.close()


if __name__ == "__main__":
    main()
