"""Data of the examples dpo and reward-model, into a folder: greetings, polite or rude.

sft.jsonl has as many polite answers as rude ones, pairs.jsonl and pairs-val.jsonl prefer polite ones, and
prompts.parquet has prompts alone, for reinforcement learning.
"""

import itertools
import json
import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

NAMES = ("Ada", "Alan", "Barbara", "Carl", "Claude", "Donald", "Edsger", "Emmy", "Frances", "Grace", "Hedy", "Ida")
TIMES = ("morning", "noon", "evening", "night")
POLITE = ("good {time}, {name}", "welcome, {name}")
RUDE = ("not you, {name}", "go away, {name}")


def cases():
    """Every name at every time, in a random order that is always the same."""
    found = [{"name": name, "time": time} for name, time in itertools.product(NAMES, TIMES)]
    random.Random(0).shuffle(found)
    return found


def prompt(case):
    return "{time}: greet {name}".format(**case)


def pair(case, polite, rude):
    return {"prompt": prompt(case), "chosen": polite.format(**case), "rejected": rude.format(**case)}


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main(folder):
    """Write the four files."""
    folder.mkdir(parents=True, exist_ok=True)
    answers = [{"prompt": prompt(case), "response": form.format(**case)} for case in cases() for form in POLITE + RUDE]
    write_lines(folder / "sft.jsonl", answers)
    pairs = [pair(case, *forms) for case in cases() for forms in itertools.product(POLITE, RUDE)]
    write_lines(folder / "pairs.jsonl", pairs[:160])
    write_lines(folder / "pairs-val.jsonl", pairs[160:])
    row = {"data_source": "greetings", "reward_model": {"ground_truth": "the reward model has it"}}
    prompts = [row | {"prompt": [{"role": "user", "content": prompt(case)}]} for case in cases()]
    pq.write_table(pa.Table.from_pylist(prompts), folder / "prompts.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
