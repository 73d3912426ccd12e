"""Reading somebody's config or checkpoint runs nothing that it names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from corerl.checkpoint import manifest
from corerl.cli.main import run

HARM = """
from pathlib import Path

(Path(__file__).parent / "harmed").touch()


def __getattr__(name):
    return lambda *arguments, **options: 0.0
"""


class Trap:
    """A Python file that leaves ``harmed`` beside it when it is imported."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "trap.py"
        self.file.write_text(HARM)

    @property
    def is_sprung(self) -> bool:
        return (self.file.parent / "harmed").exists()


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


@pytest.fixture
def config(workplace: Any, tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    """Writes the workplace's config with changes, a section each."""

    def write(changes: dict[str, Any]) -> str:
        values = yaml.safe_load(workplace.config.read_text())
        for section, keys in changes.items():
            values[section] = {**values.get(section, {}), **keys}
        file = tmp_path / "theirs.yaml"
        file.write_text(yaml.safe_dump(values))
        return str(file)

    return write


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("reward", "scorer"),
        ("reward", "manager"),
        ("actor", "policy_loss"),
        ("actor", "strategy"),
        ("algorithm", "adv_estimator"),
        ("rollout", "name"),
        ("data", "custom_cls"),
        ("plugins", "load"),
    ],
)
def test_check_and_config_show_run_no_code_that_a_config_names(
    trap: Trap, config: Any, section: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named: Any = [str(trap.file)] if key == "load" else f"{trap.file}:anything"
    file = config({section: {key: named}})
    assert run(["config", "show", file]) == 0
    run(["check", file])
    out = capsys.readouterr().out
    assert not trap.is_sprung
    assert str(trap.file) in out and "--trust" in out
    run(["check", file, "--trust"])
    assert trap.is_sprung


OWN = """
from dataclasses import dataclass

from corerl import hookimpl

def score(response, ground_truth, data_source, extra_info):
    return 0.0

def half():
    return {"model": {"path": %r}}

@dataclass
class EngineOptions:
    bitwise: bool = False

def engine(model, rollout, *, device, options: EngineOptions):
    raise RuntimeError("no GPU")

class Rows:
    def __init__(self, files, data, tokenizer, split):
        self.files = files

    def __iter__(self):
        row = {"data_source": "mine", "prompt": [{"role": "user", "content": "1 + 1 ="}]}
        yield from [row | {"reward_model": {"ground_truth": "2"}}] * 8

@hookimpl
def config_aliases():
    return {"actor.clip": "actor.policy_loss.clip_ratio_low"}

@hookimpl
def register_scorers(register):
    register("mine", score, data_sources=["mine"])

@hookimpl
def register_presets(register):
    register("half", half)
"""


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": {"scorer": "OWN:score"}},
        {"reward": {"scorers": {"mi*": "OWN:score", "*ne": "OWN:score"}}},
        {"reward": {"scorer": {"name": "combined", "components": {"a": {"scorer": "OWN:score"}}}}},
        {"plugins": {"load": ["OWN"]}, "actor": {"clip": 0.1}},
        {"plugins": {"load": ["OWN"]}, "reward": {"scorer": "mine"}},
        {"plugins": {"load": ["OWN"]}, "reward": {"scorer": "OWN:score"}, "preset": "half", "model": None},
        {"data": {"custom_cls": "OWN:Rows"}, "reward": {"scorer": "OWN:score"}, "trainer": {"test_freq": 1}},
        {
            "reward": {"scorer": "OWN:score"},
            "rollout": {"name": "OWN:engine", "options": {"bitwise": True}},
            "trainer": {"bitwise": True},
        },
    ],
)
def test_no_error_of_check_is_derived_from_code_that_it_did_not_run(
    tmp_path: Path, workplace: Any, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    values = yaml.safe_load(workplace.config.read_text())
    (tmp_path / "own.py").write_text(OWN % values["model"]["path"])
    row = {"data_source": "mine", "prompt": [{"role": "user", "content": "1 + 1 ="}]}
    pq.write_table(pa.Table.from_pylist([row | {"reward_model": {"ground_truth": "2"}}] * 8), tmp_path / "mine.parquet")
    values["data"]["train_files"] = values["data"]["val_files"] = [str(tmp_path / "mine.parquet")]
    for section, keys in json.loads(json.dumps(changes).replace("OWN", f"{tmp_path}/own.py")).items():
        values[section] = {**values.get(section, {}), **keys} if isinstance(keys, dict) else keys
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({name: value for name, value in values.items() if value is not None}))
    assert run(["check", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "own.py" in printed and "--trust" in printed and "error: " not in printed


def test_check_names_the_optimizer_of_the_critic_and_does_not_run_it(
    trap: Trap, config: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("corerl_ppo")
    optim = {"optim": {"optimizer": f"{trap.file}:make"}}
    assert run(["check", config({"algorithm": {"adv_estimator": "gae"}, "critic": optim})]) == 0
    assert not trap.is_sprung
    assert f"critic.optim.optimizer: optimizer '{trap.file}:make' is code" in capsys.readouterr().out


def test_check_of_a_run_that_resumes_runs_no_code_that_the_config_names(
    checkpoint: Path, trap: Trap, config: Any, workplace: Any
) -> None:
    trainer = {"resume_mode": str(checkpoint), "resume_with_changes": True}
    changes = {"plugins": {"load": [str(trap.file)]}, "actor": {"policy_loss": f"{trap.file}:loss"}}
    run(["check", config({**changes, "trainer": trainer})])
    assert not trap.is_sprung


def test_check_starts_no_interpreter_that_a_config_names(
    tmp_path: Path, config: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("corerl_vllm")
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/harmed\n")
    program.chmod(0o755)
    file = config({"rollout": {"name": "vllm", "options": {"python": str(program)}}})
    run(["check", file])
    assert "'vllm' was not examined" in capsys.readouterr().out
    assert not (tmp_path / "harmed").exists()
    run(["check", file, "--trust"])
    assert (tmp_path / "harmed").exists()


@pytest.fixture
def checkpoint(train: Any, workplace: Any) -> Path:
    assert train("trainer.save_huggingface=never", "trainer.save_freq=2").code == 0
    [folder] = workplace.run_folders
    return Path(folder) / "checkpoints" / "global_step_2"


def rewrite(checkpoint: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the config in a checkpoint, as somebody who hands it on can."""
    state = json.loads((checkpoint / "state.json").read_text())
    change(state["config"])
    (checkpoint / "state.json").write_text(json.dumps(state))
    manifest.write(checkpoint)


def test_export_runs_no_code_that_a_checkpoint_names(
    checkpoint: Path, trap: Trap, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(checkpoint, lambda config: config["plugins"].update(load=[str(trap.file)]))
    assert run(["export", str(checkpoint), str(tmp_path / "out")]) == 0  # an installed strategy wrote it
    assert not trap.is_sprung
    rewrite(checkpoint, lambda config: config["actor"].update(strategy=f"{trap.file}:S"))
    assert run(["export", str(checkpoint), str(tmp_path / "other")]) == 2
    error = capsys.readouterr().err
    assert f"{trap.file}, {trap.file}:S" in error and "--trust" in error
    assert not trap.is_sprung and not (tmp_path / "other").exists()
    run(["export", str(checkpoint), str(tmp_path / "other"), "--trust"])
    assert trap.is_sprung


def test_export_copies_no_file_of_this_machine_that_a_link_names(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    (checkpoint / "model" / "notes.txt").symlink_to(tmp_path / "secret")
    assert run(["export", str(checkpoint), str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "config.json").exists() and not (tmp_path / "out" / "notes.txt").exists()


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def test_a_state_that_somebody_else_wrote_is_one_error_of_a_run_that_resumes_it(
    checkpoint: Path, workplace: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    state = json.loads((checkpoint / "state.json").read_text())
    sampler = state["sampler"]
    changes: list[dict[str, Any]] = [
        {"sampler": {}},
        *({"sampler": {**sampler, name: value}} for name in sampler for value in (["x"], None, -1, 10**400)),
        *({"config": value} for value in ({}, {"trainer": []}, {"data": {"train_files": {"a": {}}}}, nested(900))),
        {"config": {**state["config"], "\x1b[2J": {"\x1b[2J": "\x1b[2J"}}},
        {"versions": {"corerl": {"a": []}}},
    ]
    resume = [str(workplace.config), f"trainer.resume_mode={checkpoint}", "trainer.total_training_steps=3"]
    for change in changes:
        (checkpoint / "state.json").write_text(json.dumps(state | change))
        manifest.write(checkpoint)
        with_changes = ["trainer.resume_with_changes=true"] if "sampler" in change else []
        assert run(["train", *resume, *with_changes]) == 2, change
        said = capsys.readouterr().err
        assert said.count("error: ") == 1 and "Traceback" not in said and "\x1b" not in said, said
