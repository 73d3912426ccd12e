"""The numbers of a run that do not depend on the machine, for comparison with those of another state of the code.

python tests/helpers/golden.py plain=RUN_FOLDER filtered=RUN_FOLDER > tests/integration/golden.json
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from corerl.telemetry.metrics_log import read_metrics

SELECTED = ("actor/grad_norm", "actor/pg_loss", "actor/kl_loss", "actor/entropy", "critic/vf_loss", "critic/grad_norm")


def golden(folder: Path) -> list[dict[str, Any]]:
    """Of each step, a digest of all prompts, responses and scores in the order of the batch, and selected metrics."""
    metrics = {int(record["step"]): record for record in read_metrics(folder / "metrics.jsonl")}
    return [
        {"step": step, "responses": _digest(folder / f"rollouts/step_{step:06}.parquet")}
        | {name: record[name] for name in SELECTED if name in record}
        for step, record in metrics.items()
        if step > 0
    ]


def _digest(path: Path) -> str:
    rows = pq.read_table(path, columns=["prompt", "token_ids", "score", "group"]).to_pylist()
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


if __name__ == "__main__":
    runs = dict(argument.split("=", 1) for argument in sys.argv[1:])
    print(json.dumps({name: golden(Path(folder)) for name, folder in runs.items()}, indent=1))
