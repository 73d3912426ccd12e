"""Checkpoints of ``torch`` and ``fsdp`` whose files are damaged: one line that names the file, in each case."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from corerl.checkpoint import manifest
from corerl.checkpoint.resume import newest_whole
from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import CoreRLError
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.reading import read_sharded, read_single
from corerl_fsdp.single_device import SingleDeviceStrategy
from families import write_config

STATE = {"step": 1, "sampler": {}, "kl_coef": None, "trackers": {}, "config": {}, "versions": {}}
KINDS: dict[str, Any] = {"torch": SingleDeviceStrategy, "fsdp": FsdpStrategy}
FILES = [
    *(("torch", 0, name) for name in ("weights.safetensors", "optimizer.pt")),
    *(("torch", 2, name) for name in ("weights.safetensors", "lora.json")),
    *(("fsdp", 0, name) for name in ("__0_0.distcp", "metadata.json", "schedule.json")),
    ("fsdp", 2, "lora.json"),
]

Damage = Callable[[Path], object]


def _in_place(make: Damage) -> Damage:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


DAMAGES: dict[str, Damage] = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "garbage": lambda path: path.write_bytes(bytes(range(256))),
    "list": lambda path: path.write_text("[1]"),
    "null": lambda path: path.write_text("null"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "digits": lambda path: path.write_text("9" * 5000),
    "missing": lambda path: path.unlink(),
    "folder": _in_place(Path.mkdir),
    "pipe": _in_place(os.mkfifo),
    "device": _in_place(lambda path: path.symlink_to("/dev/zero")),
}


class Made:
    """A strategy and a checkpoint of its, by name of the strategy and rank of its adapters."""

    def __init__(self, folder: Path, kind: str, rank: int) -> None:
        model = ModelConfig(
            str(write_config(folder / "model", "qwen2", tie_word_embeddings=True)), load_format="dummy", lora_rank=rank
        )
        spec = StrategySpec(model, "cpu", MicroBatching(max_sequences=9), OptimConfig(lr=1e-3), total_steps=9)
        self.model, self.strategy = model, KINDS[kind](spec)
        self.read = read_single if kind == "torch" else read_sharded
        self.folder = folder / "saved"
        self.folder.mkdir()
        self.strategy.save(self.folder)()


@pytest.fixture(scope="module")
def made(tmp_path_factory: Any) -> Any:
    known: dict[tuple[str, int], Made] = {}
    if dist.is_initialized():  # by another test of this process
        dist.destroy_process_group()
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())  # type: ignore[attr-defined]
    yield lambda *key: known.get(key) or known.setdefault(key, Made(tmp_path_factory.mktemp("made"), *key))
    dist.destroy_process_group()


def refused(made: Made, folder: Path, name: str, *, read: bool) -> None:
    """Every reader of the file raises one line that names it; none leaves a traceback."""
    with pytest.raises(CoreRLError) as raised:
        made.strategy.load(folder)
    errors = [raised.value]
    if read:
        with pytest.raises(CoreRLError) as raised:
            list(made.read(folder, made.model))
        errors.append(raised.value)
    for error in errors:
        assert error.exit_code in (1, 2) and "\n" not in str(error) and len(str(error)) < 800
        assert str(folder / name) in str(error) or ("lora" in name and "model.lora_rank" in str(error))


@pytest.mark.parametrize(("kind", "rank", "name"), FILES, ids=str)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named(made: Any, tmp_path: Path, kind: str, rank: int, name: str, damage: str) -> None:
    of = made(kind, rank)
    folder = Path(shutil.copytree(of.folder, tmp_path / "copy"))
    DAMAGES[damage](folder / name)
    if (name, damage) == ("__0_0.distcp", "deep"):
        pytest.skip("longer than the real one")
    reads = name not in ("optimizer.pt", "schedule.json") and (rank == 0 or damage != "missing")
    refused(of, folder, name, read=reads)


@pytest.mark.parametrize(
    "change",
    [{"lora_alpha": 10**400}, {"lora_rank": 10**400}, {"lora_rank": 1e-320}],
    ids=["long alpha", "long rank", "small rank"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_of_a_scale_beyond_all_numbers_are_named(
    made: Any, tmp_path: Path, kind: str, change: dict[str, Any]
) -> None:
    of = made(kind, 2)
    folder = Path(shutil.copytree(of.folder, tmp_path / "copy"))
    file = folder / "lora.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    refused(of, folder, "lora.json", read=True)


@pytest.mark.parametrize(
    "change",
    [
        {"last_epoch": "x"},
        {"last_epoch": -5},
        {"last_epoch": True},
        {"last_epoch": 10**400},
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_of_another_shape_is_named(made: Any, tmp_path: Path, kind: str, change: dict[str, Any]) -> None:
    of = made(kind, 0)
    folder = Path(shutil.copytree(of.folder, tmp_path / "copy"))
    name = "optimizer.pt" if kind == "torch" else "schedule.json"
    if kind == "torch":
        stored = torch.load(folder / name, weights_only=True)
        stored["schedule"].update(change)
        torch.save(stored, folder / name)
    else:
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | change))
    refused(of, folder, name, read=False)


def test_a_schedule_sets_no_attribute_of_its_choice(made: Any, tmp_path: Path) -> None:
    of = made("fsdp", 0)
    folder = Path(shutil.copytree(of.folder, tmp_path / "copy"))
    file = folder / "schedule.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "step": 1, "optimizer": 2}))
    of.strategy.load(folder)
    assert callable(of.strategy.schedule.step) and of.strategy.schedule.optimizer is of.strategy.optimizer


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["param_groups"][0].update(params=[0]),
        lambda state: state["param_groups"].pop(),
        lambda state: state["state"].update({0: {"step": torch.tensor(1.0), "exp_avg": torch.ones(3)}}),
        lambda state: state.update(state=[1]),
        lambda state: state["state"].update({10**6: {}}),
    ],
)
def test_an_optimizer_of_other_shapes_is_named(made: Any, tmp_path: Path, change: Callable[[Any], object]) -> None:
    of = made("torch", 0)
    folder = Path(shutil.copytree(of.folder, tmp_path / "copy"))
    stored = torch.load(folder / "optimizer.pt", weights_only=True)
    change(stored["optimizer"])
    torch.save(stored, folder / "optimizer.pt")
    refused(of, folder, "optimizer.pt", read=False)


def test_weights_of_other_shapes_are_named(made: Any, tmp_path: Path) -> None:
    of = made("torch", 0)
    folder = Path(shutil.copytree(of.folder, tmp_path / "copy"))
    weights = load_file(folder / "weights.safetensors")
    name = next(name for name in weights if weights[name].ndim == 1)
    save_file({**weights, name: torch.ones(1)}, folder / "weights.safetensors")  # would be broadcast
    refused(of, folder, "weights.safetensors", read=False)


@pytest.mark.parametrize("size", [[10**12], [10**30], [-1], [2**62, 8]])
def test_sizes_beyond_the_files_take_no_memory(made: Any, tmp_path: Path, size: list[int]) -> None:
    of = made("fsdp", 0)
    folder = Path(shutil.copytree(of.folder, tmp_path / "copy"))
    stored = json.loads((folder / "metadata.json").read_text())
    next(iter(stored["tensors"].values()))["size"] = size
    (folder / "metadata.json").write_text(json.dumps(stored))
    refused(of, folder, "metadata.json", read=True)


@pytest.mark.parametrize("facts", [{"lora_rank": "2"}, {"lora_rank": 0}, {"lora_alpha": None}, {"lora_alpha": 1e999}])
def test_facts_of_adapters_of_other_types_are_named(made: Any, tmp_path: Path, facts: dict[str, Any]) -> None:
    of = made("torch", 2)
    folder = Path(shutil.copytree(of.folder, tmp_path / "copy"))
    (folder / "lora.json").write_text(json.dumps({**json.loads((folder / "lora.json").read_text()), **facts}))
    refused(of, folder, "lora.json", read=True)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 9), st.sampled_from(sorted(DAMAGES)), st.booleans())
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(
    made: Any, tmp_path_factory: Any, kind: str, number: int, damage: str, all_of_it: bool
) -> None:
    run = tmp_path_factory.mktemp("run")
    for step in (1, 2):
        folder = run / "checkpoints" / f"global_step_{step}"
        shutil.copytree(made(kind, 0).folder, folder / "actor")
        (folder / "state.json").write_text(json.dumps({**STATE, "step": step}))
        manifest.write(folder)
    (run / "checkpoints" / "latest").write_text("global_step_2")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files if all_of_it else [files[number % len(files)]]:
        DAMAGES[damage](path)
    found = newest_whole(run)
    assert found is not None and found.step == 1
