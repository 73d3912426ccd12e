"""Every step of a project with real pretrained weights, on the CPU: SmolLM2-135M-Instruct, two updates each."""

import json
import math
import re
import runpy
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import real_models
from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real weights")]

QUESTIONS = ("What is 2 + 3?", "What is 4 + 4?", "Name a colour.", "Name an animal.")
ANSWERS = ("5", "8", "Blue.", "A cat.")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    try:
        return real_models.smollm2(tmp_path_factory.mktemp("real"))
    except real_models.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def project(model, tmp_path_factory):
    """A folder with data, a reward and a training config."""
    folder = tmp_path_factory.mktemp("project")
    rows = [
        {
            "data_source": "mine/questions",
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": answer},
        }
        for question, answer in zip(QUESTIONS, ANSWERS, strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    chats = [[*row["prompt"], {"role": "assistant", "content": row["reward_model"]["ground_truth"]}] for row in rows]
    _write(folder / "sft.jsonl", [{"messages": chat} for chat in chats])
    pairs = [
        {"prompt": row["prompt"], "chosen": row["reward_model"]["ground_truth"], "rejected": "I do not know."}
        for row in rows
    ]
    _write(folder / "pairs.jsonl", pairs)
    (folder / "reward.py").write_text(
        "def score(response, ground_truth, data_source, extra_info):\n    return float(len(response) % 2)\n"
    )
    (folder / "config.yaml").write_text(
        f"""
        model: {{path: {model}}}
        data: {{train_files: [{folder}/train.parquet], train_batch_size: 2, max_prompt_length: 64,
               max_response_length: 12}}
        algorithm: {{adv_estimator: grpo}}
        actor: {{device: cpu, optim: {{lr: 1e-5}}, ppo_mini_batch_size: 2, ppo_max_token_len_per_gpu: 256}}
        rollout: {{n: 2}}
        reward: {{scorer: {folder}/reward.py:score}}
        trainer: {{total_training_steps: 2, save_freq: 2, output_dir: {folder}/runs}}
        """
    )
    return folder


LAPTOP = Path(__file__).parents[2] / "examples" / "laptop"


def _write(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _metrics(folder):
    [file] = folder.glob("**/metrics.jsonl")
    return [*read_metrics(file)]


def test_check_finds_no_error(project, capsys):
    assert run(["check", str(project / "config.yaml"), "--trust"]) == 0, capsys.readouterr().out


def test_generate_writes_sentences(project, tmp_path):
    out = tmp_path / "responses.parquet"
    data = str(project / "train.parquet")
    assert run(["generate", str(project / "config.yaml"), "--data", data, "--greedy", "--out", str(out)]) == 0
    responses = pq.read_table(out)["response"].to_pylist()
    assert len(responses) == 4 and "5" in responses[0], responses


def test_sft_lowers_the_loss(project, model, tmp_path):
    config = tmp_path / "sft.yaml"
    config.write_text(
        f"""
        model: {{path: {model}}}
        output: {tmp_path}/sft
        data: {{train_files: [{project}/sft.jsonl], train_batch_size: 4, max_length: 96}}
        optim: {{lr: 1e-4}}
        trainer: {{total_training_steps: 3, device: cpu}}
        """
    )
    assert run(["sft", str(config)]) == 0
    losses = [record["train/loss"] for record in _metrics(tmp_path / "sft") if "train/loss" in record]
    assert losses[-1] < losses[0] < 10


def test_dpo_raises_the_margin(project, model, tmp_path):
    config = tmp_path / "dpo.yaml"
    config.write_text(
        f"""
        model: {{path: {model}}}
        output: {tmp_path}/dpo
        data: {{train_files: [{project}/pairs.jsonl], train_batch_size: 4, max_length: 96}}
        loss: {{name: sigmoid, beta: 0.1}}
        optim: {{lr: 1e-5}}
        trainer: {{total_training_steps: 2, device: cpu}}
        """
    )
    assert run(["dpo", str(config)]) == 0
    losses = [record["train/loss"] for record in _metrics(tmp_path / "dpo") if "train/loss" in record]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-3) and losses[-1] < losses[0]


@pytest.fixture(scope="module")
def trained(project):
    """The folder of two steps of GRPO."""
    assert run(["train", str(project / "config.yaml")]) == 0
    return next((project / "runs" / "default").iterdir())


def test_grpo_learns_from_its_own_samples(trained):
    steps = [record for record in _metrics(trained) if record["step"] > 0]
    assert len(steps) == 2
    for record in steps:
        assert record["rollout_corr/log_prob_abs_diff"] < 1e-3
        assert 0 < record["actor/entropy"] < 6 and math.isfinite(record["actor/grad_norm"])
    assert any(record["actor/grad_norm"] > 0 for record in steps)


def test_the_export_is_a_model_that_is_served(trained, model, tmp_path):
    out = tmp_path / "exported"
    checkpoint = next((trained / "checkpoints").glob("global_step_2"))
    assert run(["export", str(checkpoint), str(out)]) == 0
    assert (out / "config.json").exists() and [*out.glob("*.safetensors")]
    command = [sys.executable, "-m", "corerl", "serve", str(out), "--port", "0", "actor.device=cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        line = next((each for each in process.stdout if "/v1" in each), "")
        address = re.search(r"(http://127\.0\.0\.1:\d+/v1)", line)
        assert address, line
        asked = {"model": "m", "temperature": 0, "max_tokens": 12, "messages": [{"role": "user", "content": "Say hi."}]}
        request = urllib.request.Request(
            f"{address[1]}/chat/completions",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json", "Authorization": "Bearer corerl"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=120) as answer:
            said = json.load(answer)["choices"][0]["message"]["content"]
        assert re.search(r"[a-zA-Z]{2}", said), said
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_the_rows_of_the_laptop_example_are_true_and_held_out():
    """Each answer is a + b or a - b of the two numbers of the question."""
    rows = runpy.run_path(str(LAPTOP / "data.py"))["rows"]
    found = {}
    for split in ("train", "test"):
        texts = [(row["prompt"][0]["content"], row["reward_model"]["ground_truth"]) for row in rows(split, 500, 0)]
        found[split] = {(*map(int, re.findall(r"\d+", text)), " more" in text, answer) for text, answer in texts}
    assert all(int(truth) == (a + b if gains else a - b) > 0 for a, b, gains, truth in found["train"] | found["test"])
    assert not {each[:3] for each in found["train"]} & {each[:3] for each in found["test"]}
    score = runpy.run_path(str(LAPTOP / "reward.py"))["score"]
    answers = ("Olga has 9 eggs now.", "2 + 7 = 9", "9 and 2", "none")
    assert [score(answer, "9", "word-problems", {}) for answer in answers] == [1, 1, 0, 0]


def test_the_laptop_example_takes_a_step(model, tmp_path, monkeypatch):
    monkeypatch.chdir(LAPTOP.parents[1])
    rows = runpy.run_path(str(LAPTOP / "data.py"))["rows"]
    pq.write_table(pa.Table.from_pylist(rows("train", 8, 0)), tmp_path / "rows.parquet")
    files = [f"data.train_files=[{tmp_path}/rows.parquet]", "data.val_files=[]", "trainer.test_freq=-1"]
    small = ["data.train_batch_size=2", "actor.ppo_mini_batch_size=2", "rollout.n=4", "trainer.total_training_steps=1"]
    given = [f"model.path={model}", "actor.device=cpu", f"trainer.output_dir={tmp_path}/runs", *files, *small]
    assert run(["train", "examples/laptop/config.yaml", *given]) == 0
    assert _metrics(tmp_path / "runs")[-1]["response_length/mean"] > 4
