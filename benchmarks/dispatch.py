"""The controller's processor time of a step's calls on many ranks, with the rows in another process.

    python benchmarks/dispatch.py --ranks 1024 --rows 16384

One process stands for all ranks, and computes nothing; Ray's calls are real, one for each rank and call. A step is two
calls of ``forward``, whose outputs stay, and four updates.
"""

import argparse
import dataclasses
import time
from typing import Any, cast

import torch

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.dispatch import Place, dispatch
from corerl.contracts.experience import Experience, collate
from corerl.contracts.runtimes import Role
from corerl.contracts.token_outputs import TokenOutputs
from corerl_ray.group import Group
from corerl_ray.options import RayOptions
from corerl_ray.runtime import RayRuntime

REQUIRED = 0.5
"""seconds a step"""


class Rank:
    """Every rank, and the process of the rows."""

    @dispatch("rank_zero", keeps=True)
    def rows(self, count: int) -> Experience:
        """So many, eight to a prompt."""
        return collate([[1, 2]] * count, [[3, 4]] * count, [row // 8 for row in range(count)])

    @dispatch("split")
    def forward(self, batch: Experience) -> TokenOutputs:
        return TokenOutputs(log_probs=torch.zeros(batch.response_mask.shape))

    @dispatch("split", merge="rank_zero")
    def update(self, batch: Experience) -> dict[str, float]:
        return {}

    @dispatch("rank_zero")
    def put(self, outputs: TokenOutputs) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    runtime = RayRuntime(RuntimeConfig(name="ray"), RayOptions(workers=1))
    try:
        one: Any = runtime.spawn(Role("actor", "actor.strategy", "stub", distributed=True), Rank)
        members = tuple(dataclasses.replace(one.members[0], rank=rank) for rank in range(given.ranks))
        places = tuple(Place(rank, given.ranks) for rank in range(given.ranks))
        ranks: Any = dataclasses.replace(cast(Group, one), members=members, places=places)
        for step in range(given.steps):
            whole = one.rows(given.rows)
            quarters = torch.arange(given.rows).chunk(4)
            start, began = time.process_time(), time.perf_counter()
            for _ in range(2):
                one.put(ranks.forward(whole))
            for rows in quarters:
                ranks.update(whole.select(rows))
            used, wall = time.process_time() - start, time.perf_counter() - began
            print(
                f"step {step + 1}: {used:.2f} s of processor, {wall:.1f} s (required: at most {REQUIRED} s)", flush=True
            )
    finally:
        runtime.close()


if __name__ == "__main__":
    main()
