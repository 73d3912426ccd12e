"""Write questions in the recipe's columns: ``python data.py FOLDER [QUESTIONS.jsonl]``.

Each line of the file is ``{"question": …, "golden_answers": […], "source": "nq"}``, as in Search-R1's data. Without a
file, the questions of the tiny form are written.
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

TINY = [("What is the capital of Norway?", "Oslo"), ("What is the capital of Switzerland?", "Bern")] * 8
REQUEST = "Search if you need to, then give the answer between <answer> and </answer>."


def main(folder: Path, file: Path | None = None) -> None:
    """Write ``train.parquet``, and ``test.parquet`` with every tenth question."""
    tiny = [{"question": question, "golden_answers": [answer], "source": "tiny"} for question, answer in TINY]
    asked = [json.loads(line) for line in file.read_text().splitlines()] if file else tiny
    rows = [
        {
            "data_source": f"searchR1_{each['source']}",
            "prompt": [{"role": "user", "content": f"{each['question']} {REQUEST}"}],
            "ability": "search",
            "reward_model": {"style": "rule", "ground_truth": json.dumps({"target": each["golden_answers"]})},
            "extra_info": {"index": index},
        }
        for index, each in enumerate(asked)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.Table.from_pylist([row for index, row in enumerate(rows) if index % 10]), folder / "train.parquet"
    )
    pq.write_table(pa.Table.from_pylist(rows[::10]), folder / "test.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(Path, sys.argv[2:]))
