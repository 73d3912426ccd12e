"""Model folders of published shapes without weights, and prompts: nothing is downloaded.

    python benchmarks/gpu/material.py --out /tmp/material --gsm8k DATA/gsm8k

writes ``qwen2.5-0.5b/`` and so on (each a config, a tokenizer trained on the spot, a chat template; for
``model.load_format=dummy``), ``gsm8k/train.parquet`` and ``long.parquet``, whose prompts are cut to any length.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from corerl_testing.published_shapes import SHAPES, published_config


def write(out: Path, gsm8k: Path) -> None:
    """Write everything into ``out``."""
    data = out / "gsm8k"
    _corerl("prepare", "gsm8k", str(gsm8k), "--out", str(data))
    tokenizer = out / "tokenizer"
    train = data / "train.parquet"
    _corerl(
        *("tiny-model", "--out", str(tokenizer), "--corpus", str(train), "--vocab-size", "4000", "--no-weights"),
        *("--hidden-size", "16", "--heads", "2", "--kv-heads", "1", "--max-positions", "32768", "--force"),
    )
    small = json.loads((tokenizer / "config.json").read_text())
    tokens = {"bos_token_id": None, "eos_token_id": small["eos_token_id"], "pad_token_id": small["pad_token_id"]}
    for name in SHAPES:
        shutil.copytree(tokenizer, out / name, dirs_exist_ok=True)
        published_config(name, **tokens).save_pretrained(out / name)
    table = pq.read_table(train)
    rows = table.to_pylist()
    for index, row in enumerate(rows):
        following = [other["prompt"][-1]["content"] for other in rows[index : index + 6]]
        row["prompt"][-1]["content"] = " ".join(following)
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), out / "long.parquet")


def _corerl(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "corerl", *arguments], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gsm8k", type=Path, required=True, help="folder with train.jsonl and test.jsonl")
    values = parser.parse_args()
    write(values.out, values.gsm8k)
