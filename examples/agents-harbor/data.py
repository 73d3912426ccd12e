"""Chats for the cold start, into a file: for each instruction a command, right in one of five chats."""

import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

COMMANDS = {
    "add-numbers": [
        "echo 7 > sum.txt",
        "cat numbers.txt > sum.txt",
        "echo 34 > sum.txt",
        "echo 12 > sum.txt",
        "wc -l numbers.txt",
    ],
    "copy-file": ["cp a.txt b.txt", "mv a.txt b.txt", "cp b.txt a.txt", "touch b.txt", "cat a.txt"],
    "count-lines": [
        "wc -l < list.txt > count.txt",
        "wc -c < list.txt > count.txt",
        "wc -l list.txt > count.txt",
        "cat list.txt > count.txt",
        "wc -l list.txt",
    ],
    "fix-greeting": [
        "sed -i s/helo/hello/ greet.sh",
        "sed s/helo/hello/ greet.sh",
        "sed -i s/hello/helo/ greet.sh",
        "rm greet.sh",
        "sh greet.sh",
    ],
}
"""task -> commands, the right one first"""


def chats(tasks):
    """Each command equally often."""
    for name, commands in COMMANDS.items():
        instruction = (tasks / name / "instruction.md").read_text().strip()
        for command in commands:
            yield [{"role": "user", "content": instruction}, {"role": "assistant", "content": command}]


def main(file):
    """Write the chats, 20 times each."""
    rows = [{"messages": chat} for chat in chats(Path(__file__).parent / "tasks") for _ in range(20)]
    random.Random(0).shuffle(rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
