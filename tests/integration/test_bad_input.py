"""Whatever is wrong with a request: one clear line, exit code 2, nothing left behind."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corerl.cli.main import run

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


@pytest.mark.parametrize("key", ["rollout.free_cache_engine", "trainer.offload_while_generating"])
def test_memory_that_generation_and_training_need_at_once_is_not_handed_over(key, refused):
    refused(["trainer.max_staleness=1", f"{key}=true"], f"{key}: cannot be with trainer.max_staleness=1: ")


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["actor.use_kl_loss=false"], "no part of the run reads the reference's log-probs"),
        (["actor.device=auto"], "set rollout.free_cache_engine=false"),
        (["trainer.offload_while_generating=true"], "takes the reference from the GPU"),
        (["trainer.max_staleness=1"], "not known before it begins"),
        (["trainer.batch_order=first_finished"], "not known before its end"),
        (["model.lora_rank=2"], "ref.strategy gives it weights of its own"),
    ],
)
def test_a_reference_reads_early_only_what_it_has_memory_weights_and_groups_for(overrides, why, refused):
    given = ["actor.use_kl_loss=true", "ref.overlap_parts=2", *overrides]
    refused(given, "ref.overlap_parts: cannot be above 1: ", why)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is in this environment")
@pytest.mark.parametrize(
    ("overrides", "open_groups"),
    [
        (["trainer.max_staleness=1", "trainer.batch_window=9"], "1 × 8 = 8"),
        (["trainer.max_staleness=2", "trainer.batch_window=17", "trainer.batch_order=windowed"], "2 × 8 = 16"),
    ],
)
def test_a_window_of_more_groups_than_may_be_open_is_refused(overrides, open_groups, refused):
    refused(
        ["data.train_batch_size=8", "actor.ppo_mini_batch_size=8", *overrides], "trainer.batch_window: is", open_groups
    )


def test_an_engine_that_is_not_there_is_told_before_data_are_read(refused):
    words = "rollout.options.python: there is no vLLM in the environment of", "corerl engine install vllm"
    refused(["rollout.name=vllm", "data.train_files=[none.parquet]"], *words)


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
        "tracking.loggers=[wandbb]": "tracking.loggers[0]: unknown tracker 'wandbb' (did you mean 'wandb'?)",
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
    refused([f"trainer.resume_mode={tmp_path}/old"], "trainer.resume_mode: ", "neither auto, disable, a checkpoint")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x" * 300, "300 bytes: at most 200"),
        ("a\nb", "cannot be printed"),
        ("é" * 120, "240 bytes"),
        ("../../other", "names a folder elsewhere"),
        ("/other", "names a folder elsewhere"),
    ],
)
def test_an_experiment_name_that_is_no_folder_name_is_refused(refused, name, words):
    refused([f"tracking.experiment_name={json.dumps(name)}"], "tracking.experiment_name: ", words)
