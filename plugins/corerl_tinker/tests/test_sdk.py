"""The unmodified SDK of Tinker, in .venv-clients, against a server in this process; and the example, in short."""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from tinker_toys import KEYS

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
FOLDER = Path(__file__).parent / "clients"
SECONDS = 120

pytestmark = [
    pytest.mark.xdist_group("the SDK of Tinker"),
    pytest.mark.skipif(
        not list(ROOT.glob(".venv-clients/lib/python3*/site-packages/tinker")),
        reason="the SDK is not installed: make clients",
    ),
]


def play(server, tmp_path, *command):
    """What a program with the SDK prints."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    own = {
        "HOME": str(tmp_path),
        "NO_PROXY": "*",
        "MODEL": server.model,
        "TORCH": str(Path(torch.__file__).parents[1]),
        "TINKER_BASE_URL": server.url,
        "TINKER_API_KEY": KEYS[0],
        "TINKER_TELEMETRY": "0",
    }
    ended = subprocess.run(
        [PYTHON, *command], env=kept | own, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.fixture(scope="module")
def results(server, tmp_path_factory):
    printed = play(server, tmp_path_factory.mktemp("sdk"), FOLDER / "tinker_client.py")
    [line] = [line for line in printed.splitlines() if line.startswith("RESULTS ")]
    return json.loads(line.removeprefix("RESULTS "))


def test_training_lowers_the_loss_and_clients_at_once_get_what_each_gets_alone(results):
    first, *_, last, _ = results["alone"][0]
    assert last[0] < first[0]
    assert results["together"] == results["alone"]


def test_losses_are_the_formulas_of_the_documentation(results):
    new = np.asarray(results["old"])
    old, advantages = (new - 0.1).astype(np.float32), np.asarray([0.5] * 10 + [-1.0] * 9)
    ratio = np.exp(new - old)
    wanted = {
        "importance_sampling": -ratio * advantages,
        "ppo": -np.minimum(ratio * advantages, ratio.clip(0.9, 1.05) * advantages),
        "cispo": -ratio * advantages * new,
        "dro": -(new * advantages - 0.25 * (new - old) ** 2),
    }
    for name, terms in wanted.items():
        assert results["losses"][name] == pytest.approx(terms.sum(), rel=1e-5)


def test_custom_losses_train(results):
    before, after = results["custom"]
    assert after < before and results["step"]["grad_norm:mean"] > 0


def test_a_batch_of_several_requests_is_the_sum_of_its_data(results):
    total, number = results["many"]
    assert number == 1100 and total > 0


def test_states_and_samplers_are_saved(results):
    assert results["restored"][0] == results["restored"][1]
    state, sampler = results["paths"]
    assert state.endswith(":train:0/weights/state") and sampler.endswith(":train:0/sampler_weights/sampler")


def test_prompts_are_scored(results):
    assert results["prompt"] == results["computed"] and results["prompt"][0] is None
    assert [len(each or ()) for each in results["top"]] == [0, 2, 2, 2, 2]
    assert results["target"][2][0] == results["prompt"][3] and results["drawn"] == [4, 2]
    assert results["sampled"] == [True, True]


def test_errors_reach_the_client(results):
    assert "RequestFailedError" in results["errors"]["vocabulary"]
    assert "outside of the vocabulary of 259" in results["errors"]["vocabulary"]
    assert "is not served here" in results["errors"]["base model"]
    assert "has room for" in results["errors"]["sample"]


def test_the_model_and_its_tokenizer_are_named(results, server):
    assert results["model"] == [server.model] * 2 and results["tokenizer"] == "hi"


def test_the_example_runs_with_the_sdk_alone(server, tmp_path):
    options = {"steps": 1, "problems": 4, "group": 4, "test-problems": 4, "rank": 4}
    words = [f"--{name}={value}" for name, value in options.items()]
    printed = play(server, tmp_path, ROOT / "examples" / "tinker" / "rl.py", "--model", server.model, *words)
    assert [line.split(",")[0].split(":")[0] for line in printed.splitlines()] == ["step 0", "step 0", "step 1"]


def test_the_code_of_the_page_runs(server, tmp_path):
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tinker.md").read_text(), flags=re.DOTALL)
    program = tmp_path / "page.py"
    program.write_text(code.replace("Qwen/Qwen3-0.6B", server.model).replace("rank=16", "rank=4"))
    assert "loss:sum" in play(server, tmp_path, program)
