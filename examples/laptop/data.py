"""Word problems of one step: rows for training, and held-out rows with other names, things and pairs of numbers.

python examples/laptop/data.py runs/laptop/data
"""

import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

NAMES = {"train": ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry"), "test": ("Olga", "Paul")}
THINGS = {"train": ("apples", "books", "coins", "pencils", "shells", "stamps"), "test": ("marbles", "eggs")}
GAINS = ("buys {b} more", "finds {b} more", "gets {b} more from a friend")
LOSSES = ("gives away {b}", "loses {b}", "sells {b}")


def problem(drawn: random.Random, split: str) -> tuple[str, int]:
    """A question and its answer, from 1 to 40; a seventh of the pairs of numbers is of the test alone."""
    while True:
        gains, a = drawn.random() < 0.5, drawn.randint(2, 20)
        b = drawn.randint(1, 20) if gains else drawn.randint(1, a - 1)
        if ((a + 3 * b) % 7 == 0) == (split == "test"):
            break
    story = drawn.choice(GAINS if gains else LOSSES).format(b=b)
    name, things = drawn.choice(NAMES[split]), drawn.choice(THINGS[split])
    question = f"{name} has {a} {things} and {story}. How many {things} does {name} have now?"
    return f"{question} Answer in one short sentence.", a + b if gains else a - b


def rows(split: str, count: int, seed: int) -> list[dict[str, object]]:
    """Rows in the columns that `corerl train` reads."""
    drawn = random.Random(seed)
    return [
        {
            "data_source": "word-problems",
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": str(answer)},
        }
        for question, answer in (problem(drawn, split) for _ in range(count))
    ]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for split, count, seed in (("train", 2000, 0), ("test", 200, 1)):
        pq.write_table(pa.Table.from_pylist(rows(split, count, seed)), folder / f"{split}.parquet")
