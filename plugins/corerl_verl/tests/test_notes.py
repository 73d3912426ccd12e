"""Five commands that notes on verl publish run two steps, and docs/verl.md has a line for each name of the notes."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from corerl.cli.common import violations
from corerl.cli.main import run
from corerl.config import typed
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl.plugins import load_plugins
from corerl.registry.modules import load_file
from corerl.registry.parts import resolve_parts
from corerl.telemetry.metrics_log import read_metrics
from corerl_verl.sources import read

ROOT = Path(__file__).parents[3]
NOTES = Path(__file__).parent / "notes"
PAGE = (ROOT / "docs" / "verl.md").read_text()
NAMES: dict[str, list[str]] = yaml.safe_load((NOTES / "names.yaml").read_text())
recipes: Any = load_file(str(ROOT / "benchmarks" / "gpu" / "notes_recipes.py"))
COMMANDS = list(recipes.RECIPES)
OTHERS = {
    "generation": "corerl generate --model DIR --data FILE --n N --out OUT",
    "evaluation": "corerl eval FILE --scorer ./file.py:function",
    "merger": "corerl export CHECKPOINT DIR",
}


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and 64 rows."""
    folder = tmp_path_factory.mktemp("notes")
    recipes.material(recipes.RECIPES[COMMANDS[0]], folder, None)
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_passes_the_check_and_trains_two_steps(
    name: str, material: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, config = recipes.RECIPES[name], recipes.config_of(name)
    rows = recipes.pq.read_table(material / "data" / "train.parquet").to_pylist()
    data = recipes.write_rows(tmp_path / "train.parquet", recipe.data_source, rows)
    changes = list(recipes.exchanges(recipe, config, recipes.Place(material / "model", data, data, tmp_path / "runs")))
    assert all(change.reason for change in changes)
    kept = config["algorithm"], config["rollout"]["n"], config["actor"]["optim"], config["trainer"]["save_freq"]
    file = tmp_path / "config.yaml"
    own_scorer = [change for change in changes if change.key != "reward.scorer"]
    file.write_text(yaml.safe_dump(recipes.apply(config, own_scorer)))
    assert run(["check", str(file)]) == 0
    scorer = {"openai/gsm8k": "gsm8k", "lighteval/MATH": "math"}[recipe.data_source]
    assert f"'{recipe.data_source}' is scored by '{scorer}'" in capsys.readouterr().out
    file.write_text(yaml.safe_dump(recipes.apply(config, changes)))
    assert kept == (
        config["algorithm"],
        config["rollout"]["n"],
        config["actor"]["optim"],
        config["trainer"]["save_freq"],
    )
    assert run(["train", str(file)]) == 0
    [log] = (tmp_path / "runs").glob("*/*/metrics.jsonl")
    steps = [record for record in read_metrics(log) if "actor/grad_norm" in record]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["actor/grad_norm"] > 0 for step in steps)
    assert ("critic/vf_loss" in steps[0]) == (config["algorithm"]["adv_estimator"] == "gae")
    assert ("actor/kl_loss" in steps[0]) == config["actor"].get("use_kl_loss", False)
    [used] = (tmp_path / "runs").glob("*/*/plugins.json")
    assert {part["name"] for part in json.loads(used.read_text())} >= {config["algorithm"]["adv_estimator"], "vanilla"}


@pytest.mark.parametrize(("gpus", "engine"), [(1, "vllm"), (2, "vllm"), (4, "sglang")])
@pytest.mark.parametrize("name", COMMANDS)
def test_its_form_for_gpus_has_no_unknown_key_and_breaks_no_rule(name: str, gpus: int, engine: str) -> None:
    config = recipes.config_of(name)
    place = recipes.Place(Path("m"), Path("t"), Path("v"), Path("runs"), gpus, engine, python="/engine/bin/python")
    values = recipes.apply(config, list(recipes.exchanges(recipes.RECIPES[name], config, place)))
    assert list(_wrong(values)) == []
    assert (values["rollout"]["name"], values["runtime"]["n_gpus_per_node"]) == (engine, gpus)


def _wrong(values: Mapping[str, Any]) -> Iterator[str]:
    plugins = load_plugins((), ())
    config = typed.build(TrainConfig, dict(values))
    parts = resolve_parts(config, plugins.registries)
    yield from map(str, violations(config, parts, plugins))


@pytest.mark.parametrize("name", OTHERS)
def test_a_command_without_training_is_answered_by_one_of_corerl(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(OTHERS[name])):
        read([str(NOTES / f"{name}.sh")], {})


def test_texts_of_evaluations_and_two_files_of_data_are_kept() -> None:
    config = recipes.config_of("qwen2.5_0.5b_gsm8k_ppo_texts")
    assert config["trainer"]["log_val_generations"] == 1
    files = read(["data.train_files=['a.parquet','b.parquet']", "data.val_files=['c.parquet']"], {})
    assert recipes.converted(files).values["data"]["train_files"] == ["a.parquet", "b.parquet"]


@pytest.mark.parametrize("group", NAMES)
def test_the_page_has_a_line_for_every_name_of_the_notes(group: str) -> None:
    cells = {cell for line in PAGE.splitlines() if line.startswith("| `") for cell in line.split(" | ")[:1]}
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert [name for name in NAMES[group] if name not in named] == []


def test_the_list_of_names_covers_every_argument_of_the_commands() -> None:
    listed = set(NAMES["parameters"])
    for file in NOTES.glob("*.sh"):
        arguments = re.findall(r"^\s*\+{0,2}((?:[a-z_0-9]+\.)+[a-z_0-9]+)=", file.read_text(), flags=re.MULTILINE)
        missing = {name.removeprefix("actor_rollout_ref.") for name in arguments} - listed
        assert missing == set(), file.name


PARAMETERS = re.search(r"## Parameters of published commands\n\n(\| .*?)\n\n", PAGE, flags=re.DOTALL)


def test_the_keys_that_the_page_names_for_them_exist() -> None:
    assert PARAMETERS is not None
    registries = load_plugins((), ()).registries
    entries = (entry for kind in (registries.training_strategies, registries.rollout_backends) for entry in kind)
    options = {field.name for entry in entries for field in entry.option_fields()}
    config = typed.build(TrainConfig, {"model": {"path": "m"}})
    for line in PARAMETERS[1].splitlines()[2:]:
        for key in re.findall(r"`([^`]+)`", line.split(" | ")[1]):
            assert not list(_unknown(key, config, options)), key


def _unknown(key: str, place: Any, options: set[str]) -> Iterator[str]:
    """Whether a key of the schema, or of a part's options, is unknown."""
    for name in key.split("."):
        if isinstance(place, (str, dict, type(None))):
            if name not in options:
                yield key
            return
        if not hasattr(place, name):
            yield key
            return
        place = getattr(place, name)


@pytest.mark.parametrize("size", ["0_6b", "8b"])
def test_the_presets_of_megatron_have_the_values_of_the_notes(size: str) -> None:
    presets = pytest.importorskip("corerl_megatron.presets")
    preset = dict(_flat(getattr(presets, f"qwen3_{size}")()))
    command = dict(_flat(recipes.config_of(f"qwen3_{size.replace('_', '.')}_xr1_grpo")))
    assert preset.pop("rollout.val_kwargs.do_sample") is True  # as the notes write; verl ignores it
    assert preset.pop("model.enable_gradient_checkpointing") is True  # likewise
    assert preset == {key: command.get(key) for key in preset}
    left = {key for key in command if key not in preset and not key.startswith(("reward.", "tracking."))}
    assert {key for key in left if not key.endswith(("path", "_files"))} == {
        "model.enable_gradient_checkpointing",
        "algorithm.kl_penalty",  # of the KL in the reward, which is off
        "algorithm.kl_ctrl.type",
        "actor.policy_loss",
        *(f"actor.strategy.{key}" for key in _UNWRITTEN[size]),
        "trainer.critic_warmup",
        "runtime.nnodes",
        "ref.log_prob_micro_batch_size_per_gpu",
    }


_LAYOUT = ("pipeline_model_parallel_size", "context_parallel_size", "sequence_parallel", "use_mbridge")
_UNWRITTEN = {"0_6b": _LAYOUT, "8b": (*_LAYOUT, "param_offload", "grad_offload")}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
