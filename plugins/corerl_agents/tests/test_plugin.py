"""The hooks, the data of the example, and its config."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from corerl.cli.main import run
from corerl.data import read_parquet
from corerl.registry import load_object
from corerl_agents.agents.functions import schema_of
from corerl_agents.parsing import FORMATS
from corerl_agents.plugin import config_errors

EXAMPLE = Path(__file__).parents[3] / "examples" / "agents"


def test_an_unknown_format_is_an_error_with_the_known_ones():
    from corerl.contracts.config import ModelConfig, TrainConfig

    config = TrainConfig(ModelConfig("m"))
    assert list(config_errors(config)) == []
    config.rollout.multi_turn.format = "hermit"
    [error] = config_errors(config)
    assert str(error) == f"rollout.multi_turn.format: there is no format 'hermit'; formats are {', '.join(FORMATS)}"


def test_plugin_imports_nothing_heavy():
    program = "import sys, corerl_agents.plugin; print({'torch', 'transformers', 'mcp', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_example_shows_the_cold_start_the_schema_of_its_function():
    sft = yaml.safe_load((EXAMPLE / "sft.yaml").read_text())
    [shown] = sft["data"]["apply_chat_template_kwargs"]["tools"]
    schema = schema_of(load_object(f"{EXAMPLE}/calculator.py:calculator"))
    assert json.dumps(shown) == json.dumps(schema)
    assert json.dumps(schema) in json.loads((EXAMPLE / "tools.jsonl").read_text())["text"]


def test_the_data_of_the_example_has_guesses_and_calls_and_keeps_test_apart(tmp_path):
    sizes = ["--train-size", "50", "--test-size", "20", "--sft-size", "60", "--guesses", "0.5"]
    assert run(["prepare", "tool-arithmetic", "--out", str(tmp_path), *sizes]) == 0
    prompts = {
        split: {str(row["prompt"]) for _, row in read_parquet(str(tmp_path / f"{split}.parquet"), ["prompt"])}
        for split in ("train", "test")
    }
    assert not prompts["train"] & prompts["test"] and (len(prompts["train"]), len(prompts["test"])) == (50, 20)
    chats = [row["messages"] for _, row in read_parquet(str(tmp_path / "sft.parquet"), ["messages"])]
    assert 15 < sum(len(chat) == 4 for chat in chats) < 45 and len(chats) == 60
    assert run(["prepare", "tool-arithmetic", "--out", str(tmp_path / "more"), "--train-size", "8100"]) == 2


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Overrides of a short form of the example, and its metrics."""
    folder = tmp_path_factory.mktemp("example")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(EXAMPLE.parents[1])
        given = cold_start(folder)
        yield given, trained([*given, f"trainer.output_dir={folder}/runs"])


def cold_start(folder):
    data, model, cold = (str(folder / name) for name in ("data", "model", "cold-start"))
    sizes = ["--train-size", "500", "--test-size", "40", "--sft-size", "1500"]
    assert run(["prepare", "tool-arithmetic", "--out", data, *sizes]) == 0
    shape = ["--vocab-size", "400", "--hidden-size", "64", "--kv-heads", "4", "--intermediate-size", "256"]
    shape += [
        "--max-positions",
        "192",
        "--rope-theta",
        "100",
        "--initializer-range",
        "0.05",
        "--tools",
        "--layers",
        "1",
    ]
    corpus = ["--corpus", f"{data}/sft.parquet", "--corpus", "examples/agents/tools.jsonl"]
    assert run(["tiny-model", "--out", model, *corpus, *shape]) == 0
    sft = [f"model.path={model}", f"output={cold}", f"data.train_files=[{data}/sft.parquet]"]
    assert (
        run(["sft", "examples/agents/sft.yaml", *sft, "trainer.total_training_steps=70", "data.train_batch_size=16"])
        == 0
    )
    given = [f"model.path={cold}", f"data.train_files=[{data}/train.parquet]", f"data.val_files=[{data}/test.parquet]"]
    given += ["trainer.total_training_steps=2", "data.train_batch_size=16", "trainer.val_before_train=false"]
    return given


@pytest.mark.slow
def test_the_cold_start_calls_the_calculator(short):
    """In a part of its episodes, as its teacher; it is too short for right answers, so two steps teach nothing."""
    steps = [step for step in short[1] if "agent/tool_calls/mean" in step]
    assert len(steps) == 2
    assert all(0.05 < step["agent/tool_calls/mean"] < 0.8 for step in steps)
    assert all(step["training/rollout_probs_diff_max"] < 1e-4 for step in steps)


@pytest.mark.slow
@pytest.mark.skipif("CORERL_EVERY_TWIN" not in os.environ, reason="trains once more, over HTTP: CORERL_EVERY_TWIN=1")
def test_the_example_over_http_gives_the_same_metrics(short, tmp_path):
    given, steps = short
    pytest.importorskip("corerl_gateway")
    pytest.importorskip("openai")
    own = ["rollout.agent=./examples/agents/with_openai.py:with_openai", f"trainer.output_dir={tmp_path}/openai"]
    for mine, theirs in zip(steps, trained([*given, *own]), strict=True):
        for name in ("critic/score/mean", "actor/pg_loss", "actor/grad_norm", "agent/tool_calls/mean"):
            assert mine.get(name) == theirs.get(name), f"{name} over HTTP"


def trained(given: list[str]) -> list[dict[str, float]]:
    """The metrics of a run of the example."""
    assert run(["train", "examples/agents/config.yaml", *given]) == 0
    [folder] = [Path(each.partition("=")[2]) for each in given if each.startswith("trainer.output_dir=")]
    [log] = folder.glob("*/*/metrics.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]
