"""The job of the race, and its rows: a seed orders them once, and every contender reads them in this order."""

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

INSTRUCTION = ' Let\'s think step by step and output the final answer after "####".'
"""behind each question, as in verl's preparation of GSM8K"""


class Job(NamedTuple):
    """What every contender gets; the learning rate is constant."""

    prompts: int = 128
    n: int = 8
    prompt_length: int = 384
    response_length: int = 512
    steps: int = 40
    test_freq: int = 10
    learning_rate: float = 1e-6
    kl_coef: float = 0.001


def read_gsm8k(file: Path) -> list[dict[str, Any]]:
    """Rows of GSM8K's JSON lines, in the columns that CoreRL and verl read."""
    rows = []
    for index, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
        given = json.loads(line)
        rows.append(
            {
                "data_source": "openai/gsm8k",
                "prompt": [{"role": "user", "content": given["question"] + INSTRUCTION}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": given["answer"].rpartition("####")[2].strip()},
                "extra_info": {"index": index},
            }
        )
    return rows


def write_rows(data: Path, folder: Path, seed: int, most: int | None = None) -> tuple[Path, Path]:
    """``train.parquet`` in the order of the seed and ``test.parquet``; ``most``: of each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    train, test = (read_gsm8k(data / f"{name}.jsonl") for name in ("train", "test"))
    random.Random(seed).shuffle(train)
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "train.parquet", folder / "test.parquet"
    for file, rows in zip(files, (train, test), strict=True):
        pq.write_table(pa.Table.from_pylist(rows[:most]), file)
    return files
