"""Data of the example, into a folder: games as seeds, and games of a careless player for the cold start."""

import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from game import GUESSES, NUMBERS

PROMPT = [{"role": "user", "content": "game"}]


def rows(seeds):
    """The server starts a game with the seed of its row, so a game of test.parquet is always the same."""
    row = {"data_source": "guess", "prompt": PROMPT, "reward_model": {"ground_truth": "the server has it"}}
    return [row | {"extra_info": {"reset": {"seed": seed}}} for seed in seeds]


def game(draw):
    """A chat of a player who minds range and hint in a third of the guesses, in the words of the server."""
    secret, low, high = draw.randint(1, NUMBERS), 1, NUMBERS
    chat = [{"role": "user", "content": "game\n\nguess"}]
    for turn in range(GUESSES):
        number = draw.randint(low, high) if draw.random() < 0.33 else draw.randint(1, NUMBERS + 2)
        chat.append({"role": "assistant", "content": str(number)})
        if number == secret or turn == GUESSES - 1:
            break
        chat.append({"role": "user", "content": "higher" if number < secret else "lower"})
        low, high = (max(low, number + 1), high) if number < secret else (low, min(high, number - 1))
    return {"messages": chat}


def main(folder):
    """Write the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    parts = {"train": rows(range(1000)), "test": rows(range(1000, 1100)), "sft": [game(draw) for _ in range(4000)]}
    for name, content in parts.items():
        pq.write_table(pa.Table.from_pylist(content), folder / f"{name}.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
