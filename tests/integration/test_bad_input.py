"""Whatever is wrong with a request: one clear line, exit code 2, nothing left behind; and runs that go wrong midway."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from corerl.checkpoint.store import CheckpointStore
from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics

SCORERS_AND_LOSSES = """
from corerl.registry.policy_losses import LossOutput

calls = 0

def odd_raises(response, ground_truth, data_source, extra_info):
    if int(ground_truth) % 2:
        raise ValueError(f"cannot score {ground_truth}")
    return float(len(response))

def always_raises(response, ground_truth, data_source, extra_info):
    raise ConnectionError("the sandbox is down")

def length(response, ground_truth, data_source, extra_info):
    return float(len(response))

def nan_in_second_step(inputs):
    global calls
    calls += 1
    return LossOutput(inputs.log_probs * (float("nan") if calls > 2 else 1.0))

def one_number(inputs):
    return LossOutput(-(inputs.advantages * inputs.log_probs).sum())
"""


class Outcome(NamedTuple):
    """What a command came to; ``error`` is its line ``error: …``, '' when there is none."""

    code: int
    error: str
    stderr: str


class Workplace(NamedTuple):
    """A folder with a config; ``runs`` is where its runs go."""

    folder: Path
    config: Path
    runs: Path

    @property
    def run_folders(self) -> list[Path]:
        return list(self.runs.glob("*/*"))

    @property
    def half_written(self) -> list[Path]:
        return list(self.folder.rglob("*.tmp"))


@pytest.fixture
def workplace(material: Path, tmp_path: Path) -> Workplace:
    """A config that trains 2 steps of 2 updates, and ``parts.py``."""
    config = tmp_path / "config.yaml"
    config.write_text(
        f"""
        model: {{path: {material}/model}}
        data: {{train_files: [{material}/data/train.parquet], train_batch_size: 8, max_prompt_length: 64,
               max_response_length: 4}}
        actor: {{device: cpu, optim: {{lr: 1e-2, weight_decay: 0.1}}, ppo_mini_batch_size: 4}}
        rollout: {{n: 2}}
        trainer: {{total_training_steps: 2, output_dir: {tmp_path}/runs}}
        """
    )
    (tmp_path / "parts.py").write_text(SCORERS_AND_LOSSES)
    return Workplace(tmp_path, config, tmp_path / "runs")


Train = Callable[..., Outcome]


@pytest.fixture
def train(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> Train:
    """``train("key=value", …)``: run the command in this process."""

    def start(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run(["train", str(workplace.config), *arguments])
        stderr = capsys.readouterr().err
        assert "Traceback" not in stderr
        lines = [line for line in stderr.splitlines() if line.startswith("error: ")]
        assert len(lines) == (code in (1, 2)), stderr
        assert not lines or stderr.endswith(f"{lines[0]}\n")
        return Outcome(code, lines[0] if lines else "", stderr)

    return start


@pytest.fixture
def refused(workplace: Workplace, train: Train) -> Callable[..., None]:
    """``refused(arguments, words)``: exit code 2, an error with all the words, and no run folder."""

    def check(arguments: Sequence[str], *words: str) -> None:
        outcome = train(*arguments)
        assert outcome.code == 2
        for word in words:
            assert word in outcome.error
        assert not workplace.runs.exists()
        assert not workplace.half_written

    return check


@pytest.fixture
def rows(material: Path) -> list[dict[str, Any]]:
    """The rows of the training file, to spoil."""
    read: list[dict[str, Any]] = pq.read_table(material / "data" / "train.parquet").to_pylist()
    return read


@pytest.fixture
def write(tmp_path: Path) -> Callable[[list[dict[str, Any]]], str]:
    """Write rows to a parquet file; returns the override that trains on it."""

    def to_file(rows: list[dict[str, Any]]) -> str:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "spoilt.parquet")
        return f"data.train_files=[{tmp_path}/spoilt.parquet]"

    return to_file


# Data


def test_an_empty_file_is_named(material, tmp_path, refused):
    pq.write_table(pq.read_table(material / "data" / "train.parquet").slice(0, 0), tmp_path / "none.parquet")
    refused([f"data.train_files=[{tmp_path}/none.parquet]"], "none.parquet: has 0 rows")


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_named(material, tmp_path, refused, kept):
    content = (material / "data" / "train.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[: int(kept * len(content))])
    refused([f"data.train_files=[{tmp_path}/cut.parquet]"], "cut.parquet: truncated", "write it again")


def test_a_validation_file_is_checked_before_the_run_too(tmp_path, refused):
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    refused([f"data.val_files=[{tmp_path}/cut.parquet]"], "cut.parquet: truncated")


def test_a_missing_column_is_named_with_the_nearest(rows, write, refused):
    renamed = [{"prompts" if key == "prompt" else key: value for key, value in row.items()} for row in rows]
    refused([write(renamed)], "spoilt.parquet: has no column 'prompt' (did you mean 'prompts'?)", "data_source")


def test_a_prompt_without_messages_is_named_by_its_row(rows, write, refused):
    rows[3]["prompt"] = []
    refused([write(rows)], "spoilt.parquet, row 3, column 'prompt': has no messages")


def test_rows_with_an_empty_ground_truth_are_skipped_and_counted(rows, write, train, workplace):
    for number in (3, 5, 30):
        rows[number]["reward_model"] = {"style": "rule", "ground_truth": ""}
    outcome = train(write(rows), "trainer.total_training_steps=1")
    assert outcome.code == 0
    assert "40 rows read, 37 kept" in outcome.stderr
    assert "3 skipped, empty reward_model.ground_truth" in outcome.stderr
    assert "spoilt.parquet, row 3; row 5; row 30" in outcome.stderr
    assert len(workplace.run_folders) == 1


def test_only_empty_ground_truths_are_an_error(rows, write, refused):
    for row in rows:
        row["reward_model"] = {"style": "rule", "ground_truth": ""}
    refused([write(rows)], "none of 40 rows can be used", "empty reward_model.ground_truth", "row 0")


def test_a_data_source_that_nobody_scores_is_named_with_the_nearest(rows, write, refused):
    rows[3]["data_source"] = "corerl/arithmetics"
    refused([write(rows)], "'corerl/arithmetics' has no scorer (did you mean 'corerl/arithmetic'?)", "reward.scorer")


def test_a_data_source_that_two_scorers_claim_is_an_error_naming_both(workplace, train, refused):
    second = workplace.folder / "second.py"
    second.write_text(
        "from corerl import hookimpl\n"
        "@hookimpl\n"
        "def register_scorers(register):\n"
        "    register('mine', lambda *_: 1.0, summary='x', data_sources=('corerl/arithmetic',))\n"
    )
    words = ("data_source 'corerl/arithmetic' is scored by 'arithmetic' of corerl-rewards", f"'mine' of {second}")
    refused(["--plugin", str(second)], *words, "reward.scorer")
    assert train("--plugin", str(second), "reward.scorer=mine", "trainer.total_training_steps=1").code == 0


def test_overlong_prompts_are_named_with_their_lengths_and_three_remedies(refused):
    refused(
        ["data.max_prompt_length=4", "data.filter_overlong_prompts=false"],
        "40 prompts are longer than data.max_prompt_length=4 tokens",
        "train.parquet, row 0; row 1; row 2; and 37 more",
        "data.filter_overlong_prompts=true",
        "data.truncation=left",
    )


def test_when_every_prompt_is_filtered_out_the_reason_is_given(refused):
    refused(["data.max_prompt_length=4"], "none of 40 rows can be used", "longer than data.max_prompt_length=4")


def test_fewer_prompts_than_a_batch_gives_the_largest_batch(refused):
    refused(["data.train_batch_size=44"], "data.train_batch_size", "40 prompts", "at most 40")


# Model


@pytest.fixture
def model_without(material: Path, tmp_path: Path) -> Callable[[str], str]:
    """A copy of the model folder without the files of a pattern."""

    def copy(pattern: str) -> str:
        folder = tmp_path / "partial-model"
        shutil.copytree(material / "model", folder)
        for file in folder.glob(pattern):
            file.unlink()
        return f"model.path={folder}"

    return copy


def test_a_model_folder_without_a_tokenizer_names_the_key_that_helps(model_without, refused):
    refused([model_without("tokenizer*")], "partial-model: has no tokenizer", "model.tokenizer_path")


def test_a_missing_chat_template_names_the_key_that_helps(model_without, refused):
    refused(
        [model_without("chat_template*")], "partial-model: its tokenizer has no chat template", "model.chat_template"
    )


def test_a_model_folder_without_weights_is_named(model_without, refused):
    refused([model_without("*.safetensors")], "model.path: ", "partial-model cannot be loaded")


def test_a_model_folder_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path, refused):
    refused([f"model.path={tmp_path}/nowhere"], "nowhere: no such folder")


# Config


def test_nothing_heavy_is_imported_before_a_config_is_right(workplace):
    """All in one process: exit code 2, the key and the remedy, and neither torch nor transformers in sys.modules."""
    wrong = {
        "actor.optm.lr=1e-3": "actor.optm.lr: unknown key; did you mean actor.optim.lr?",
        "rollout.n=many": "rollout.n: must be an integer, not 'many'",
        "actor.optim.lr=-1": "actor.optim.lr: must be greater than 0, not -1",
        "data.truncation=lft": "data.truncation: must be one of error, left, right, middle, not 'lft' (did you mean",
        "data.train_batch_size=6": "data.train_batch_size: 6 prompts do not divide into mini-batches",
        "data.train_batch_size=2": "actor.ppo_mini_batch_size: 4 prompts are more than data.train_batch_size",
        "rollout.n=1": "rollout.n: must be at least 2, not 1: algorithm.adv_estimator=grpo compares",
        "algorithm.adv_estimator=grop": "unknown advantage estimator 'grop' (did you mean 'grpo'?)",
        "rollout.name=sglang": "pip install corerl-sglang",
        "actor.policy_loss.clip_ratio=0.1": "actor.policy_loss.clip_ratio: unknown key",
    }
    script = (
        "import json, sys\n"
        "from corerl.cli.main import run\n"
        "codes = [run(['train', sys.argv[1], override]) for override in sys.argv[2:]]\n"
        "heavy = sorted({'torch', 'transformers', 'ray'} & set(sys.modules))\n"
        "print(json.dumps([codes, heavy]))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(workplace.config), *wrong], capture_output=True, text=True, check=True
    )
    assert json.loads(result.stdout) == [[2] * len(wrong), []]
    lines = result.stderr.splitlines()
    assert len(lines) == len(wrong)
    for line, words in zip(lines, wrong.values(), strict=True):
        assert line.startswith("error: ") and words in line
    assert not workplace.runs.exists()


def test_a_broken_plugin_file_is_named_with_the_line(tmp_path, refused):
    (tmp_path / "broken.py").write_text("import os\nimport not_installed_anywhere\n")
    refused(["--plugin", f"{tmp_path}/broken.py"], "broken.py is broken", "not_installed_anywhere", "line 2")


def test_a_part_that_its_file_does_not_have_is_named_with_the_nearest(tmp_path, workplace, refused):
    refused([f"reward.scorer={tmp_path}/parts.py:lenght"], "reward.scorer", "has no 'lenght' (did you mean 'length'?)")


# Output


def test_an_output_folder_below_a_file_is_refused_before_data_are_read(tmp_path, refused):
    (tmp_path / "taken").write_text("")
    arguments = [f"trainer.output_dir={tmp_path}/taken/runs", "data.train_files=[missing.parquet]"]
    refused(arguments, "trainer.output_dir: ", "taken/runs cannot be used", "Not a directory")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_folder_without_permission_is_refused(tmp_path, refused):
    (tmp_path / "locked").mkdir(mode=0o555)
    refused([f"trainer.output_dir={tmp_path}/locked/runs"], "trainer.output_dir: ", "Permission denied")


def test_an_sft_output_below_a_file_is_refused(material, tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    (tmp_path / "sft.yaml").write_text(
        f"{{model: {{path: {material}/model}}, output: {tmp_path}/taken/m, data: {{train_files: [missing.parquet]}}}}"
    )
    assert run(["sft", str(tmp_path / "sft.yaml")]) == 2
    assert capsys.readouterr().err.startswith("error: output: ")


def test_an_output_of_tiny_model_below_a_file_is_refused(material, tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    corpus = f"{material}/data/train.parquet"
    assert run(["tiny-model", "--out", f"{tmp_path}/taken/model", "--corpus", corpus]) == 2
    assert capsys.readouterr().err.startswith("error: --out: ")


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path, refused):
    refused([f"checkpoint.resume={tmp_path}/old"], "checkpoint.resume: ", "neither a run with a checkpoint nor")


def test_a_dry_run_checks_the_config_and_writes_nothing(workplace, train, refused):
    before = sorted(workplace.folder.rglob("*"))
    assert train("--dry-run").code == 0
    assert sorted(workplace.folder.rglob("*")) == before
    refused(["--dry-run", "rollout.n=1"], "rollout.n: must be at least 2")
    refused(["--dry-run", "algorithm.adv_estimator=grop"], "did you mean 'grpo'?")


# Runs that go wrong midway


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


def test_responses_whose_scorer_raises_are_left_out_counted_and_shown(train, workplace):
    outcome = train(f"reward.scorer={workplace.folder}/parts.py:odd_raises")
    assert outcome.code == 0
    [folder] = workplace.run_folders
    for record in read_metrics(folder / "metrics.jsonl"):
        assert 0 < record["reward/error_ratio"] < 1
        assert record["critic/score/min"] > 0  # never scored 0
    assert "responses could not be scored and are left out" in outcome.stderr
    assert "raised ValueError: cannot score" in outcome.stderr
    errors = pq.read_table(folder / "rollouts" / "step_000002.parquet").to_pylist()
    assert {row["score"] is None for row in errors if int(json.loads(row["ground_truth"])) % 2} == {True}


def test_steps_in_which_no_response_has_a_score_leave_the_weights_as_they_are(material, train, workplace):
    val = f"data.val_files=[{material}/data/test.parquet]"
    outcome = train(f"reward.scorer={workplace.folder}/parts.py:always_raises", val, "actor.use_kl_loss=true")
    assert outcome.code == 0
    [folder] = workplace.run_folders
    before, after = (weights(path) for path in (material / "model", folder / "checkpoints/global_step_2/huggingface"))
    assert all(after[name].equal(before[name]) for name in before)
    assert "16 of 16 responses could not be scored" in outcome.stderr
    assert "step 2: no response has a score, so the weights stay as they are" in outcome.stderr
    assert "step 0, evaluation: 8 of 8 responses could not be scored" in outcome.stderr
    assert "no curve drawn: no response had a score" in outcome.stderr
    last = read_metrics(folder / "metrics.jsonl")[-1]
    assert (last["reward/error_ratio"], last["val-aux/error_ratio"]) == (1.0, 1.0)
    assert not [name for name in last if name.startswith(("critic/", "actor/", "val-core/"))]


def test_a_loss_that_is_not_finite_ends_the_run_naming_the_step(train, workplace):
    outcome = train(
        f"actor.policy_loss={workplace.folder}/parts.py:nan_in_second_step",
        f"reward.scorer={workplace.folder}/parts.py:length",
        "trainer.save_freq=1",
    )
    assert outcome.code == 1
    assert outcome.error.startswith("error: step 2: loss nan with gradient norm nan")
    [folder] = workplace.run_folders
    assert [record["step"] for record in read_metrics(folder / "metrics.jsonl")] == [1]
    assert (folder / "checkpoints" / "latest").read_text() == "global_step_1"
    assert not workplace.half_written


def test_a_loss_that_reduces_its_terms_itself_is_an_error(train, workplace):
    """Broadcast over the tokens it would train, with a gradient that depends on how the batch is cut."""
    outcome = train(f"actor.policy_loss={workplace.folder}/parts.py:one_number")
    assert outcome.code == 1
    assert "step 1: a loss gave terms of shape (), not (8, " in outcome.error
    assert "one term for each response token" in outcome.error


# Interrupts


class InterruptedRun(NamedTuple):
    code: int
    stderr: str
    folder: Path


@pytest.fixture
def interrupted(workplace: Workplace) -> InterruptedRun:
    """A run of its own process that gets Ctrl-C after its second checkpoint."""
    arguments = ["trainer.total_training_steps=100000", "trainer.save_freq=1", "checkpoint.max_to_keep=2"]
    program = [sys.executable, "-c", "from corerl.cli.main import main; main()"]
    process = subprocess.Popen(
        [*program, "train", str(workplace.config), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 60
        while not list(workplace.runs.glob("*/*/checkpoints/global_step_2")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    [folder] = workplace.run_folders
    return InterruptedRun(process.returncode, stderr, folder)


def test_ctrl_c_leaves_readable_metrics_and_whole_checkpoints_to_resume_from(interrupted, train, workplace):
    assert interrupted.code == 130
    assert interrupted.stderr.endswith("\ninterrupted\n") and "Traceback" not in interrupted.stderr
    assert not workplace.half_written
    steps = [json.loads(line)["step"] for line in (interrupted.folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))
    checkpoints = interrupted.folder / "checkpoints"
    latest = int((checkpoints / "latest").read_text().removeprefix("global_step_"))
    for folder in checkpoints.glob("global_step_*"):
        for file in ("state.json", "actor/weights.safetensors", "actor/optimizer.pt", "huggingface/model.safetensors"):
            assert (folder / file).stat().st_size > 0
    total = f"trainer.total_training_steps={latest + 1}"
    assert train(f"checkpoint.resume={interrupted.folder}", total).code == 0
    assert read_metrics(interrupted.folder / "metrics.jsonl")[-1]["step"] == latest + 1


class _Actor:
    """Writes one file where a policy would write its weights."""

    def save(self, folder: Path) -> None:
        (folder / "weights").write_text("w")

    export = save


def test_a_deletion_that_is_cut_off_leaves_no_half_of_a_checkpoint(tmp_path, monkeypatch):
    actor: Any = _Actor()
    store = CheckpointStore(tmp_path, max_to_keep=1)
    store.save(1, actor, {})

    def interrupted_halfway(folder: Path) -> None:
        (folder / "state.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupted_halfway)
        with pytest.raises(KeyboardInterrupt):
            store.save(2, actor, {})
    assert [path.name for path in tmp_path.glob("global_step_*")] == ["global_step_2"]
    store.save(3, actor, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_3", "latest"]
