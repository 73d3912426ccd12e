"""The example of docs/endpoint.md is trained; the page lists the options."""

import dataclasses
import re
from pathlib import Path

import pytest

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics
from corerl_gateway.options import EndpointOptions

pytest.importorskip("corerl_fsdp")
PAGE = (Path(__file__).parents[3] / "docs" / "endpoint.md").read_text()
CONFIG = """
model: {path: model}
data: {train_files: [data/train.parquet], train_batch_size: 4, max_prompt_length: 64, max_response_length: 32}
actor: {device: cpu, ppo_mini_batch_size: 4}
rollout: {n: 2}
trainer: {total_training_steps: 1}
"""


def test_the_example_is_trained_over_http(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = ["--max-operand=9", "--train-size=16", "--test-size=4", "--sft-size=0"]
    assert run(["prepare", "arithmetic", "--out=data", *sizes]) == 0
    shape = ["--vocab-size=300", "--hidden-size=16", "--layers=1"]
    assert run(["tiny-model", "--out=model", "--corpus=data/train.parquet", *shape]) == 0
    [(name, code)] = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, flags=re.DOTALL)
    Path(name).write_text(code)
    Path("config.yaml").write_text(CONFIG)
    command = re.search(r"^\$ corerl (train .*)$", PAGE, flags=re.MULTILINE)[1]
    assert run(command.split()) == 0
    [file] = Path().glob("runs/*/*/metrics.jsonl")
    metrics = read_metrics(file)[-1]
    assert (metrics["agent/turns/mean"], metrics["agent/failed/ratio"]) == (1.0, 0.0)
    assert metrics["training/rollout_probs_diff_max"] < 1e-4


def test_the_page_lists_the_options():
    listed = re.findall(r"^\| `(\w+)`", PAGE.partition("## Options")[2].partition("\n## ")[0], re.MULTILINE)
    assert listed == [field.name for field in dataclasses.fields(EndpointOptions)]
