"""Write problems in the recipe's columns: ``python data.py FOLDER [PROBLEMS.jsonl]``.

Each line of the file is ``{"problem": …, "tests": {"inputs": […], "outputs": […]}}``, with ``fn_name`` in ``tests``
for a function. Without a file, the problems of the tiny form are written.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TINY = [
    {
        "problem": f"Read a number and print it plus {added}.",
        "tests": {"inputs": ["1\n"], "outputs": [f"{1 + added}\n"]},
    }
    for added in range(16)
]
REQUEST = "Write a Python program in a fenced block."


def main(folder: Path, file: Path | None = None) -> None:
    """Write ``train.parquet``, and ``test.parquet`` with every tenth problem."""
    problems: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()] if file else TINY
    rows = [
        {
            "data_source": "taco",
            "prompt": [{"role": "user", "content": f"{each['problem']} {REQUEST}"}],
            "ability": "code",
            "reward_model": {"style": "rule", "ground_truth": json.dumps(each["tests"])},
            "extra_info": {"index": index},
        }
        for index, each in enumerate(problems)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.Table.from_pylist([row for index, row in enumerate(rows) if index % 10]), folder / "train.parquet"
    )
    pq.write_table(pa.Table.from_pylist(rows[::10]), folder / "test.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(Path, sys.argv[2:]))
