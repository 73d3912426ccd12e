"""The groups that each step of a run was trained on, against those of an undisturbed run: for chaos.py."""

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow.parquet as pq

Trained = Counter[str]
"""prompt -> responses to it"""


def of_step(run_folder: Path, step: int) -> Trained | None:
    """None: it is not known, for want of sample rollouts."""
    path = run_folder / "rollouts" / f"step_{step:06d}.parquet"
    try:
        prompts = pq.read_table(path, columns=["prompt"]).column("prompt").to_pylist()
    except (OSError, ValueError):
        return None
    return Counter(map(str, prompts))


def wrong(run_folder: Path, straight: Path, steps: int, staleness: int, full: Collection[int]) -> Iterator[str]:
    """What is wrong with the groups of a run that has reached its end.

    A step takes the groups that finish first among its own and those of the next ``staleness`` steps; each is trained
    once in the end.

    Args:
        straight: of a run without staleness.
        full: steps of which the disk, being full, may have kept no samples.
    """
    seen, due, unknown = Trained(), Trained(), 0
    begun = Trained()
    expected = [of_step(straight, step) or Trained() for step in range(1, steps + 1)]
    for ahead in expected[:staleness]:
        begun += ahead
    for step in range(1, steps + 1):
        due += expected[step - 1]
        begun += expected[step - 1 + staleness] if step + staleness <= steps else Trained()
        trained = of_step(run_folder, step)
        if trained is None and step in full:
            unknown += expected[step - 1].total()
            continue
        seen += trained or Trained()
        if early := seen - begun:
            yield f"step {step} was trained on {dict(early)} more than a run without faults had begun"
        if not staleness and (late := due - seen).total() != unknown:
            yield f"step {step}: {dict(late)} were not trained yet"
    if (missing := due - seen).total() != unknown:
        yield f"never trained: {dict(missing)}"
