"""The example with a taskset, in a short form: a real training with verifiers 0.4, which .venv-clients has."""

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "agents-verifiers"
CLIENTS = EXAMPLE.parents[1] / ".venv-clients" / "bin" / "python"
SHAPE = ["--vocab-size=320", "--hidden-size=32", "--layers=1", "--heads=2", "--kv-heads=2", "--intermediate-size=64"]
SHORT = ["trainer.total_training_steps=2", "trainer.val_before_train=false", "trainer.test_freq=-1"]
SHORT += ["data.train_batch_size=2", "rollout.n=2", "actor.ppo_mini_batch_size=2"]
SHORT += ["data.max_response_length=400"]  # a random model's text has other tokens when the client sends it again
PROGRAM = """
import json, runpy, site, sys
site.addsitedir({packages!r})  # the libraries of the clients come first
sys.path.insert(0, "examples/agents-verifiers")
from corerl.cli.main import run
for arguments in {commands!r}:
    if arguments[0].endswith(".py"):
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
    elif code := run(arguments):
        sys.exit(code)
"""


@pytest.mark.skipif("CORERL_EVERY_TWIN" not in os.environ, reason="25 s: set CORERL_EVERY_TWIN=1")
@pytest.mark.skipif(not CLIENTS.exists(), reason="the clients are not installed: make clients")
def test_the_example_trains(tmp_path):
    data, model = f"{tmp_path}/data", f"{tmp_path}/model"
    files = [f"data.train_files=[{data}/train.parquet]", f"data.val_files=[{data}/test.parquet]"]
    given = [f"model.path={model}", *files, f"trainer.output_dir={tmp_path}/run", *SHORT]
    commands = [
        ["prepare", "verifiers", "--taskset=days", "--train-size=8", "--test-size=2", f"--out={data}"],
        ["examples/agents-verifiers/data.py", f"{data}/sft.parquet"],
        ["tiny-model", f"--out={model}", f"--corpus={data}/sft.parquet", *SHAPE, "--max-positions=512"],
        ["train", "examples/agents-verifiers/config.yaml", *given],
    ]
    program = PROGRAM.format(packages=sysconfig.get_path("purelib"), commands=commands)
    done = subprocess.run(
        [CLIENTS, "-c", program], cwd=EXAMPLE.parents[1], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    [log] = tmp_path.glob("run/**/metrics.jsonl")
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["agent/failed/ratio"] == 0.0 and last["agent/turns/mean"] >= 1.0
    assert last["training/rollout_probs_diff_max"] < 1e-4
