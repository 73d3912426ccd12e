"""Chats for the cold start, into a file: two questions each; somewhat more than half of the answers are right."""

import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from days import ANSWERS, DAYS


def chat(draw):
    """Two questions with answers of a teacher who often guesses."""
    messages = []
    for question in draw.sample(list(ANSWERS), 2):
        answer = ANSWERS[question] if draw.random() < 0.5 else draw.choice(DAYS)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages}


def main(file):
    """Write 3,000 chats."""
    draw = random.Random(0)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([chat(draw) for _ in range(3000)]), file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
