"""Layouts of N GPUs, the table of rates, lengths."""

import json
from pathlib import Path
from typing import Any

import pytest

from corerl.cli.common import read_train_values
from corerl.cli.main import run
from corerl.errors import RequestError
from corerl_simulate.layouts import Layout, Refused, layouts, reasons
from corerl_simulate.lengths import Drawn, Fixed, LogNormal, lengths_of
from corerl_simulate.table import TABLES, read_table
from corerl_simulate.validation import shape

SMALL = {"hidden": 1536, "intermediate": 8960, "layers": 28, "heads": 12, "key_value_heads": 2, "head_size": 128}
LARGE = {"hidden": 8192, "intermediate": 29_568, "layers": 80, "heads": 64, "key_value_heads": 8, "head_size": 128}


def found(dimensions: dict[str, Any], gpus: int, *overrides: str, mps: bool = False) -> list[Layout | Refused]:
    given = ["model.path=none", "rollout.name=vllm", "model.dtype=bf16", "model.enable_gradient_checkpointing=true"]
    given.append("actor.strategy={name: fsdp, compile: true}")
    values, plugins = read_train_values(None, [*given, *overrides])
    sizes, table = {"actor": shape(dimensions)}, read_table("h200")
    return layouts(values, plugins, sizes, table, gpus, max_staleness=1, prompt=100, response=400, mps=mps)


def test_all_gpus_are_used_and_overrides_make_the_layout() -> None:
    fitting = [each for each in found(SMALL, 16) if isinstance(each, Layout)]
    assert {each.job.gpus for each in fitting} == {16}
    assert {each.job.engines.gpus for each in fitting} == {0, 8}  # whole hosts
    assert all("rollout.pipeline_model_parallel_size" not in each.values for each in fitting)
    for each in fitting[:6]:
        read, _ = read_train_values(None, ["model.path=none", *each.overrides()])
        assert read["runtime"]["nnodes"] * read["runtime"]["n_gpus_per_node"] == each.job.trainers.ranks
        assert read["trainer"]["max_staleness"] == each.job.config.trainer.max_staleness


def test_the_fastest_of_every_placement_comes_first() -> None:
    fitting = [each for each in found(SMALL, 8, mps=True) if isinstance(each, Layout)]
    placements = [(each.job.engines.gpus, each.job.config.trainer.max_staleness) for each in fitting]
    different = len(set(placements))
    assert len(set(placements[:different])) == different == 8
    assert fitting[0].about <= fitting[different].about


def test_a_model_that_is_too_large_is_refused_with_its_memory() -> None:
    every = found(LARGE, 2)
    refused = [each for each in every if isinstance(each, Refused)]
    assert any("GiB of 140 on a GPU" in reason for reason in reasons(refused))
    engines_of_one = [each for each in every if each.values["rollout.tensor_model_parallel_size"] == 1]
    assert all(isinstance(each, Refused) for each in engines_of_one)  # 141 GB of weights
    assert [each for each in found(LARGE, 32) if isinstance(each, Layout)]


def test_more_than_a_host_must_be_whole_hosts() -> None:
    with pytest.raises(RequestError, match="--gpus 12: more than one host of 8 GPUs must be whole hosts"):
        found(SMALL, 12)


def test_lengths(tmp_path: Path) -> None:
    assert lengths_of("512") == Fixed(512)
    drawn = lengths_of("lognormal:800:0.8")
    assert isinstance(drawn, LogNormal)
    values = [drawn.of(seed, 3) for seed in range(20_000)]
    assert sum(values) / len(values) == pytest.approx(800, rel=0.03)
    assert drawn.of(5, 1) == drawn.of(5, 1) != drawn.of(5, 2)
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"response_length": [7, 9, 0]}), tmp_path / "step_1.parquet")
    assert lengths_of(str(tmp_path)) == Drawn((7, 9))
    for wrong in ("0", "lognormal:5", "lognormal:x:1", str(tmp_path / "none")):
        with pytest.raises(RequestError, match="--lengths"):
            lengths_of(wrong)


def test_engines_get_stages_only_if_nothing_else_fits() -> None:
    """Of one head, which tensor parallel ranks cannot divide, and 81 billion parameters."""
    every = found({**LARGE, "heads": 1, "key_value_heads": 1, "head_size": 8192}, 32)
    fitting = [each for each in every if isinstance(each, Layout)]
    assert fitting and all(each.job.engines.stages > 1 and each.job.engines.data == 1 for each in fitting)
    keys = {f"rollout.pipeline_model_parallel_size={each.job.engines.stages}" for each in fitting}
    assert keys <= {key for each in fitting for key in each.overrides()}
    assert "engines of 4 GPUs PP 4" in " ".join(each.name() for each in fitting)


def test_the_stages_of_the_config_are_simulated_beside_none() -> None:
    fitting = [each for each in found(SMALL, 8, "rollout.pipeline_model_parallel_size=2") if isinstance(each, Layout)]
    assert {(each.job.engines.stages, each.job.engines.data) for each in fitting} == {(1, 1), (2, 1)}
    for each in fitting:
        value = each.values.get("rollout.pipeline_model_parallel_size")
        assert value == {1: 1, 2: None}[each.job.engines.stages]  # the config has 2


def test_a_wrong_table_names_its_key(tmp_path: Path) -> None:
    text = (TABLES / "h200.yaml").read_text()
    for changed, message in (
        (text.replace("sample_us", "sample_ms", 1), r"engines.vllm.sample_ms is no key"),
        (text.replace("memory_gib: 139.8, ", ""), "gpu.memory_gib is missing"),
        (text.replace("139.8", "much"), "gpu.memory_gib is 'much'; it must be a number"),
        (text.replace("overlap:", "overlaps:"), "unknown key 'overlaps'"),
        (text.replace("matrix_tflops: 760", "matrix_tflops: 0"), "gpu.matrix_tflops is 0; it must be a number above 0"),
        (text.replace("nccl_gb: 20", "nccl_gb: 0"), "exchange.nccl_gb is 0; it must be a number above 0"),
        (text.replace("step_ms: 1.3", "step_ms: .nan"), "engines.vllm.step_ms is nan; it must be a number, 0 or"),
        (text.replace("terabytes: 3.6", "terabytes: .inf"), "gpu.terabytes is inf; it must be"),
        (text.replace("sharing: 1.0", "sharing: true", 1), "engines.vllm.sharing is True; it must be a number"),
        (text.replace("gpus_per_node: 8", "gpus_per_node: 2.5"), "links.gpus_per_node is 2.5; it must be a whole"),
        (text.replace("most: 1000000", "most: 0"), "engines.hf.most is 0; it must be a whole number, 1 or more"),
        (text.replace("reports: 0", "reports: 3"), "engines.hf.reports is 3; it must be true or false"),
    ):
        (tmp_path / "own.yaml").write_text(changed)
        with pytest.raises(RequestError, match=message):
            read_table(str(tmp_path / "own.yaml"))
    with pytest.raises(RequestError, match="no such table or file; tables: h200"):
        read_table("h20")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config of a model of 1.5B, whose shape is given: reading it imports transformers."""
    monkeypatch.setattr("corerl_simulate.report.model_size", lambda *_: shape(SMALL))
    config = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 300, "hidden_size": 32}
    config |= {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = tmp_path / "c.yaml"
    file.write_text(
        f"model: {{path: {tmp_path}}}\nrollout: {{name: vllm}}\ndata: {{train_batch_size: 4}}\n"
        "actor: {ppo_mini_batch_size: 4}\n"
    )
    return file


def test_fewer_gpus_that_are_as_fast_are_named(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """512 responses on 128 GPUs: four each."""
    options = ["data.train_batch_size=64", "actor.ppo_mini_batch_size=64", "--steps", "1", "--most", "2"]
    command = ["simulate", str(small), *options, "--lengths", "512", "--gpus"]

    def simulated(gpus: int) -> dict[str, Any]:
        assert run([*command, str(gpus), "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    found = simulated(128)
    fewer, fastest = found["fewer"], found["layouts"][0]["seconds"]
    alone = simulated(fewer["gpus"])
    assert fewer["gpus"] < 128 and alone["layouts"][0]["seconds"] == fewer["seconds"] <= 1.05 * fastest
    assert alone["fewer"] is None or alone["fewer"]["seconds"] > 1.05 * fastest
    assert simulated(fewer["gpus"] // 2)["layouts"][0]["seconds"] > 1.05 * fastest
    assert run([*command, "128"]) == 0
    printed = capsys.readouterr().out
    assert f"\n{fewer['gpus']} GPUs are as fast: {fewer['seconds']:.2f} s a step, {fastest:.2f} s on 128\n" in printed
    assert " ".join(fewer["overrides"][:3]) in printed


def test_a_batch_that_all_gpus_need_is_not_as_fast_on_fewer(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = ["data.train_batch_size=512", "actor.ppo_mini_batch_size=512", "--lengths", "512"]
    assert run(["simulate", str(small), *batch, "--gpus", "4", "--steps", "1", "--most", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fewer"] is None


def test_the_command_prints_layouts_and_the_best_as_overrides(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", str(small), "--gpus", "2", "--steps", "1", "--most", "3"]
    assert run([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["layouts"]) == 3
    seconds = [each["seconds"] for each in printed["layouts"]]
    assert seconds == sorted(seconds) and seconds[0] > 0
    assert run(command) == 0
    lines = capsys.readouterr().out
    assert "corerl train CONFIG runtime.name=ray" in lines and "assumed: prompts have 256 tokens" in lines
    assert run([*command, "--table", "h20"]) == 2
    assert run([*command, "--prompt-tokens", "513"]) == 2
    assert "--prompt-tokens 513: data.max_prompt_length is 512" in capsys.readouterr().err
