"""Code and commands of pages in docs/ run as they stand; test_docs_pages.py looks at what no test here runs."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from corerl.cli.main import run
from corerl.config import typed
from corerl.config.load import load
from corerl.contracts.config import MultiTurnConfig
from corerl.telemetry.metrics_log import read_metrics
from corerl_supervised.config import DpoConfig, RewardModelConfig, SftConfig
from corerl_tools.check.configuration import look

pytest.importorskip("corerl_hf")
pytest.importorskip("corerl_fsdp")
pytest.importorskip("corerl_grpo")
pytest.importorskip("corerl_rewards")

DOCS = Path(__file__).parents[2] / "docs"
PLUGINS = (DOCS / "plugins.md").read_text()


@pytest.fixture(scope="module")
def data_and_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``data`` and ``model``."""
    folder = tmp_path_factory.mktemp("data-and-model")
    sizes = ["--max-operand=9", "--train-size=16", "--test-size=4", "--sft-size=0"]
    assert run(["prepare", "arithmetic", f"--out={folder}/data", *sizes]) == 0
    shape = ["--vocab-size=300", "--hidden-size=16", "--layers=1"]
    assert run(["tiny-model", f"--out={folder}/model", f"--corpus={folder}/data/train.parquet", *shape]) == 0
    return folder


@pytest.fixture
def files(data_and_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The document's Python files, in the current folder, with data and a model."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PLUGINS, flags=re.DOTALL)
    for block in blocks:
        first, _, code = block.partition("\n")
        assert re.fullmatch(r"# \w+\.py", first)
        Path(first.removeprefix("# ")).write_text(code)
    assert len(list(tmp_path.iterdir())) == len(blocks) == 7
    shutil.copytree(data_and_model, tmp_path, dirs_exist_ok=True)
    Path("config.yaml").write_text(
        """
        model: {path: model}
        data: {train_files: [data/train.parquet], train_batch_size: 4, max_prompt_length: 64, max_response_length: 4}
        actor: {device: cpu, ppo_mini_batch_size: 4}
        rollout: {n: 2}
        trainer: {total_training_steps: 1}
        """
    )
    return tmp_path


def commands(section: str) -> list[list[str]]:
    """The commands of a section of docs/plugins.md, as lists of arguments, without those that need a network.

    A block with ``pip install`` is what tests/integration/test_new_plugin.py does with every kind.
    """
    [text] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PLUGINS, flags=re.DOTALL | re.MULTILINE)
    blocks = [block for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL) if "pip" not in block]
    found = [shlex.split(line.removeprefix("$ ")) for block in blocks for line in block.splitlines()]
    assert found and all(command[0] == "corerl" for command in found)
    return [command[1:] for command in found]


def run_all(section: str) -> None:
    for command in commands(section):
        assert run(command) == 0, command


def test_evaluation(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / "evaluation.md").read_text()
    answers = [("#### 4", True), ("#### 4", True), ("#### 5", False), ("The answer is 4", True)]
    rows = [{"data_source": "openai/gsm8k", "ground_truth": "4", "response": a, "human": h} for a, h in answers]
    Path("labelled.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = re.findall(r"^\$ corerl (.*)$", text, flags=re.MULTILINE)
    assert len(found) == text.count("\n$ ") == 7
    for command in found:
        capsys.readouterr()
        assert run(shlex.split(command)) == 0, command
    [shown] = re.findall(r"```\n(data source.*?)```", text, flags=re.DOTALL)
    assert capsys.readouterr().out.split() == shown.split()
    written = set(pq.read_schema("responses.parquet").names) | set(pq.read_schema("greedy.parquet").names)
    columns = text[text.index("| column |") : text.index("## Score")]
    assert written == set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", columns, flags=re.MULTILINE))))


def test_rows_of_ones_own(files: Path) -> None:
    [code] = re.findall(r"```python\n# my_data.py\n(.*?)```", (DOCS / "data.md").read_text(), flags=re.DOTALL)
    Path("my_data.py").write_text(code)
    Path("numbers.txt").write_text("1\n2\n3\n4\n")
    assert run(["train", "config.yaml", "data.custom_cls=./my_data.py:MyData", "data.train_files=[numbers.txt]"]) == 0
    assert "reward/error_ratio" in metrics()


def metrics() -> dict[str, float]:
    [path] = Path("runs").rglob("metrics.jsonl")
    return read_metrics(path)[-1]


def test_a_custom_reward(files: Path) -> None:
    run_all("A custom reward in ten lines")
    assert metrics()["reward/length_ok/mean"] == 1.0


def test_a_policy_loss(files: Path) -> None:
    run_all("A new policy loss")
    assert metrics()["actor/ratio_outside"] == 0.0  # one update on the step's own samples


def test_an_advantage_estimator(files: Path) -> None:
    run_all("An advantage estimator from a paper")
    assert "critic/advantages/mean" in metrics()


def test_names(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_all("Names")
    out = capsys.readouterr().out
    assert "the last word is the answer" in out
    assert "distance of the ratio from 1" in out
    assert "step 1: more than half of the responses were cut off" in out


def test_a_package(files: Path) -> None:
    run_all("A package")
    assert Path("my-reward/example.yaml").is_file()


@pytest.mark.skipif("CORERL_EVERY_TWIN" not in os.environ, reason="20 s: CORERL_EVERY_TWIN=1")
def test_testing(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_all("Testing")
    out = capsys.readouterr().out
    assert "gradient_invariant" in out
    assert "thread_safe" in out
    options = ["-q", "-p", "no:cacheprovider", "test_conformance.py"]
    done = subprocess.run([sys.executable, "-m", "pytest", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


def test_presets(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_all("Presets")
    assert "clip_ratio_low: 0.1" in capsys.readouterr().out
    assert metrics()["actor/lr"] == 1e-6


def test_facts(files: Path) -> None:
    run_all("Facts")
    assert "actor/pg_loss" in metrics()


def test_every_section_of_the_page_has_a_test_here() -> None:
    sections = re.findall(r"^## (.*)$", PLUGINS, flags=re.MULTILINE)
    assert sections == [
        "A custom reward in ten lines",
        "A new policy loss",
        "An advantage estimator from a paper",
        "Names",
        "A package",
        "Testing",
        "Presets",
        "Facts",
        "When something is wrong",
    ]


def test_environments(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / "environments.md").read_text()
    [block] = re.findall(r"```python\n# guess\.py\n(.*?)```", text, flags=re.DOTALL)
    Path("guess.py").write_text(block)
    [command] = re.findall(r"^\$ corerl (.*)$", text, flags=re.MULTILINE)
    assert run(shlex.split(command)) == 0
    assert metrics()["env/turns/max"] >= 1
    limits = set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE))
    limits_of_others = {"environment", "endpoint"}
    assert limits == {field.name for field in dataclasses.fields(MultiTurnConfig)} - limits_of_others
    for name in re.findall(r"`(env/\w+)", text):
        assert any(key.startswith(name) for key in metrics()), name


def test_agents(files: Path) -> None:
    text = (DOCS / "agents.md").read_text()
    for name, code in re.findall(r"```python\n# (\S+)\n(.*?)```", text, flags=re.DOTALL):
        Path(name).write_text(code)
    retry, tools = re.findall(r"^\$ corerl (.*)$", text, flags=re.MULTILINE)
    for command in (retry, retry.replace("retry", "twice")):
        assert run([*shlex.split(command), "data.max_response_length=96"]) == 0
        assert (metrics()["agent/turns/mean"], metrics()["agent/failed/ratio"]) == (2.0, 0.0)
        assert metrics()["training/rollout_probs_diff_max"] < 1e-4
        shutil.rmtree("runs")
    given = ["rollout.agent={name: ./patient.py:Patient, attempts: 2}", "data.max_response_length=32"]
    assert run(["train", "config.yaml", *given, "rollout.multi_turn.score_response=false"]) == 0
    assert (metrics()["agent/turns/mean"], metrics()["agent/right/mean"]) == (2.0, 0.0)
    shutil.rmtree("runs")
    assert run([*shlex.split(tools), "data.max_prompt_length=512"]) == 0
    assert (metrics()["agent/tool_calls/mean"], metrics()["agent/malformed_calls/mean"]) == (0.0, 0.0)


def test_trackers(files: Path) -> None:
    text = (DOCS / "trackers.md").read_text()
    [block] = re.findall(r"```python\n# my_tracker\.py\n(.*?)```", text, flags=re.DOTALL)
    Path("my_tracker.py").write_text(block)
    [command] = re.findall(r"^\$ corerl (.*)$", text, flags=re.MULTILINE)
    assert run([*shlex.split(command), "data.val_files=[data/test.parquet]"]) == 0
    [file] = Path("runs").glob("*/*/reward.csv")
    rows = [line for line in file.read_text().splitlines() if "corerl/arithmetic" in line]
    assert [row.partition(",")[0] for row in rows] == ["0", "0", "1", "1"]
    for config in re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL):
        overrides = [f"{section}={json.dumps(values)}" for section, values in yaml.safe_load(config).items()]
        assert run(["config", "show", "config.yaml", *overrides]) == 0


@pytest.mark.parametrize(
    ("page", "prompt", "truth"), [("from-trl", "prompt", "answer"), ("from-openrlhf", "input", "label")]
)
def test_the_example_of_those_who_come_from_elsewhere(page: str, prompt: str, truth: str, files: Path) -> None:
    text = (DOCS / f"{page}.md").read_text()
    for name, code in re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", text, flags=re.DOTALL):
        Path(name).write_text(code)
    Path("train.jsonl").write_text("".join(f'{{"{prompt}": "{n} + 1 = ?", "{truth}": "{n + 1}"}}\n' for n in range(8)))
    found = [shlex.split(line) for line in re.findall(r"^\$ corerl (.*)$", text, flags=re.MULTILINE)]
    assert [command[0] for command in found] == ["check", "train"]
    small = ["model.path=model", "actor.device=cpu", "data.train_batch_size=4", "actor.ppo_mini_batch_size=4"]
    small += [
        "rollout.n=2",
        "data.max_response_length=4",
        "data.max_prompt_length=64",
        "trainer.total_training_steps=1",
    ]
    assert run([*found[0], *small, "--trust"]) == 0
    assert run([*found[1], *small]) == 0
    assert metrics()["reward/error_ratio"] == 0.0


def test_the_kl_term_of_trl_has_the_gradient_of_the_form_with_plus() -> None:
    """docs/from-trl.md: the ratio times k3 has on-policy the gradient of k2."""
    from corerl.plugins import load_plugins

    old = torch.tensor([[-0.3, -2.0, -1.0]])
    ref = torch.tensor([[-0.5, -1.0, -1.0]])
    ours, theirs = (old.clone().requires_grad_() for _ in range(2))
    load_plugins((), ()).registries.kl_types.get("low_var_kl+").load()(ours, ref).sum().backward()
    k3 = torch.exp(ref - theirs) - (ref - theirs) - 1
    (k3 * torch.exp(theirs - old)).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_engines_of_the_templates_are_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "writing-engines.md").read_text()
    monkeypatch.chdir(tmp_path)
    for command in re.findall(r"^\$ corerl (new .*)$", text, flags=re.MULTILINE):
        assert run(shlex.split(command)) == 0
    assert len(Path("my-backend/src/my_backend/backend.py").read_text().splitlines()) < 200
    linked = [link for link in re.findall(r"\]\(([^)#]+)\)", text + PLUGINS) if "://" not in link]
    assert linked
    for link in linked:
        assert (DOCS / link).exists(), link


SUPERVISED = {"sft.yaml": SftConfig, "dpo.yaml": DpoConfig, "reward_model.yaml": RewardModelConfig}
CONFIGS = [
    path
    for folder in ("examples", "benchmarks")
    for path in sorted((Path(__file__).parents[2] / folder).rglob("*.yaml"))
    if path.name not in SUPERVISED and path.parent.name != "kubernetes"
]


@pytest.mark.parametrize("path", CONFIGS, ids=[f"{path.parent.name}/{path.name}" for path in CONFIGS])
def test_the_configs_that_we_show_are_accepted(path: Path) -> None:
    said_by_its_script = ["model.path=somewhere", "data.train_files=[somewhere]"] if path.parent.name == "gpu" else []
    findings = look(path, said_by_its_script, [], []).findings
    assert [each for each in findings if "which is not installed" not in each.sentence] == []


@pytest.mark.parametrize("name", SUPERVISED)
def test_the_configs_of_other_commands_are_accepted(name: str) -> None:
    examples = sorted((Path(__file__).parents[2] / "examples").rglob(name))
    assert examples
    for path in examples:
        load(SUPERVISED[name], path)
    page = "sft.md" if name == "sft.yaml" else "preference.md"
    [config, *_] = re.findall(r"```yaml\n(model: .*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    typed.build(SUPERVISED[name], yaml.safe_load(config))
