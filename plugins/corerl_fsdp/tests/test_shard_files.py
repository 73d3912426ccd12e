"""What strategy ``fsdp`` reads of a checkpoint that somebody else wrote."""

import errno
import json
import os
import pickle
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from corerl.contracts.config import ModelConfig
from corerl.errors import ModelError
from corerl_fsdp.reading import read_sharded
from corerl_fsdp.shard_files import FILE, ShardWriter, fill

STATE = {
    "model.a.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "model.b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "optimizer.a.weight.step": torch.tensor(7.0),
}


class Harm:
    """A pickle of it makes the folder ``harmed`` where it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved = tmp_path / "saved"
    state_dict_saver.save(dict(STATE), storage_writer=ShardWriter(saved), no_dist=True)
    return saved


def read(folder: Path) -> dict[str, Tensor]:
    return dict(read_sharded(folder, ModelConfig("none")))


def test_the_error_of_the_disk_is_raised_and_not_torchs(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(CheckpointException) as raised:
            state_dict_saver.save({"a": torch.ones(300_000)}, storage_writer=ShardWriter(tmp_path), no_dist=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    [(error, _)] = raised.value.failures.values()
    assert isinstance(error, OSError) and error.errno == errno.EFBIG


def test_what_is_written_is_read_again_bit_for_bit(folder: Path) -> None:
    blank: dict[str, Any] = {name: torch.zeros_like(tensor) for name, tensor in STATE.items()}
    fill(blank, folder, no_dist=True)
    assert all(torch.equal(blank[name], tensor) for name, tensor in STATE.items())
    weights = read(folder)
    assert list(weights) == ["a.weight", "b"] and torch.equal(weights["b"], STATE["model.b"])


def test_no_pickle_is_written_and_none_is_read(folder: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["__0_0.distcp", FILE]
    (folder / ".metadata").write_bytes(pickle.dumps(Harm(tmp_path / "harmed")))
    read(folder)
    (folder / FILE).unlink()
    with pytest.raises(ModelError, match=r"has no metadata\.json"):
        read(folder)
    assert not (tmp_path / "harmed").exists()


def test_a_pickle_in_place_of_a_chunk_is_not_run(folder: Path, tmp_path: Path) -> None:
    stored = json.loads((folder / FILE).read_text())
    torch.save(Harm(tmp_path / "harmed"), folder / "__0_0.distcp")
    for facts in stored["tensors"].values():
        facts["chunks"][0] |= {"start": 0, "bytes": (folder / "__0_0.distcp").stat().st_size}
    (folder / FILE).write_text(json.dumps(stored))
    with pytest.raises(ModelError, match=r"__0_0\.distcp is damaged, or not of CoreRL: UnpicklingError"):
        read(folder)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"chunks": [{"offsets": [0, 0], "sizes": [3, 4], "file": "../other", "start": 0, "bytes": 9}]},
            "no file beside",
        ),
        ({"chunks": [{"offsets": [0, 0], "sizes": [3, 4], "file": "/etc/passwd", "start": 0, "bytes": 9}]}, "no file"),
        ({"dtype": "load"}, "'load' is no dtype"),
        ({"dtype": "no_such_dtype"}, "is damaged"),
        ({"size": "large"}, "is damaged"),
        ({"chunks": None}, "is damaged"),
    ],
)
def test_metadata_that_is_wrong_is_named(folder: Path, changes: dict[str, Any], words: str) -> None:
    stored = json.loads((folder / FILE).read_text())
    stored["tensors"]["model.a.weight"] |= changes
    (folder / FILE).write_text(json.dumps(stored))
    with pytest.raises(ModelError, match=words):
        read(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tensors": 3}', "\x00"])
def test_metadata_that_is_none_is_named(folder: Path, text: str) -> None:
    (folder / FILE).write_text(text)
    with pytest.raises(ModelError, match="is damaged"):
        read(folder)
