"""A checkpoint that somebody else wrote, with a manifest that fits."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from corerl.checkpoint import manifest, random_state
from corerl.checkpoint.resume import Checkpoint, find_checkpoint, newest_whole, taken
from corerl.checkpoint.store import paths
from corerl.contracts.config import ModelConfig, TrainConfig, TrainerConfig
from corerl.errors import ConfigError, RequestError

STATE: dict[str, Any] = {"step": 1, "sampler": {}, "kl_coef": None, "trackers": {}, "config": {}, "versions": {}}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints" / "global_step_1"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps(STATE))
    manifest.write(folder)
    return folder


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", "[" * 100_000, "\udc80", json.dumps({**STATE, "step": "1"}), "9" * 5000),
        *(json.dumps({**STATE, name: []}) for name in STATE),
        *(json.dumps({**STATE, "step": value}) for value in (-1, 10**18, True)),
        *(json.dumps({**STATE, "kl_coef": value}) for value in (float("nan"), float("inf"), False)),
        *(json.dumps({**STATE, "scores": {"1": value}}) for value in (float("nan"), "0.5", [])),
        *(json.dumps({**STATE, **value}) for value in ({"scores": {"x": 0.5}}, {"scores": []}, {"digests": None})),
        *(json.dumps({key: value for key, value in STATE.items() if key != name}) for name in STATE),
    ],
    ids=lambda text: text[:40],
)
def test_a_state_of_another_shape_is_one_error(checkpoint: Path, text: str) -> None:
    (checkpoint / "state.json").write_text(text, errors="surrogateescape")
    manifest.write(checkpoint)
    with pytest.raises(RequestError, match=r"state\.json is damaged, or not of CoreRL: \w+Error: "):
        Checkpoint.read(checkpoint)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ([], "no readable"),
        ({"block": "x", "files": {}}, "no readable"),
        ({"block": 0, "files": {}}, "blocks of 0 bytes"),
        ({"block": 2**80, "files": {}}, "blocks of"),
        ({"block": manifest.BLOCK, "files": {"a": 1}}, "no readable"),
        ({"block": manifest.BLOCK, "files": {"state.json": {}}}, "state.json has"),
        ({"block": manifest.BLOCK, "files": {"../latest": {}}}, "outside"),
        ({"block": manifest.BLOCK, "files": {"/etc/passwd": {}}}, "outside"),
        ({"block": manifest.BLOCK, "files": {"a\0": {}}}, "is missing"),
    ],
)
def test_a_manifest_of_another_shape_is_damage(checkpoint: Path, written: object, words: str) -> None:
    (checkpoint / manifest.NAME).write_text(json.dumps(written))
    assert words in manifest.damage(checkpoint)


def test_a_checkpoint_on_a_path_through_the_folder_above_is_whole(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest.write(checkpoint)
    (checkpoint.parent / "beside").mkdir()
    monkeypatch.chdir(checkpoint.parent / "beside")
    assert manifest.damage(Path("..") / checkpoint.name) == ""


@pytest.mark.parametrize("content", [b"", b"../../elsewhere", b"global_step_", b"global_step_1/..", b"\xff\xfe"])
def test_a_pointer_to_no_checkpoint_is_passed_over(
    checkpoint: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint.parent / "latest").write_bytes(content)
    (checkpoint.parent / "global_step_1x").mkdir()
    assert paths(checkpoint.parent) == [checkpoint]
    found = newest_whole(checkpoint.parents[1])
    assert found is not None and found.path == checkpoint
    assert "latest names no checkpoint (it " in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"PK", b"cos\nsystem\n(S'false'\ntR."])
def test_damaged_random_states_are_one_error(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "random-0.pt").write_bytes(content)
    with pytest.raises(RequestError, match=r"random-0\.pt is damaged"):
        random_state.restore(checkpoint)


@pytest.mark.parametrize("name", ["latest", "global_step_1/manifest.json"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(checkpoint: Path, name: str) -> None:
    file = checkpoint.parent / name
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    found = newest_whole(checkpoint.parents[1])
    assert (found is None) == (name != "latest")


def test_a_lock_that_is_a_link_leaves_the_other_file_as_it_is(checkpoint: Path, tmp_path: Path) -> None:
    run, precious = checkpoint.parents[1], tmp_path / "precious"
    precious.write_text("kept")
    (run / ".lock").symlink_to(precious)
    with pytest.raises(ConfigError, match=r"\.lock is no regular file"), taken(run):
        pass
    assert precious.read_text() == "kept"


def test_a_lock_that_is_a_pipe_is_one_error(checkpoint: Path) -> None:
    run = checkpoint.parents[1]
    os.mkfifo(run / ".lock")
    with pytest.raises(ConfigError, match=r"\.lock is no regular file"), taken(run):
        pass
    config = TrainConfig(ModelConfig("m"), trainer=TrainerConfig(resume_mode=str(run)))
    assert find_checkpoint(config, 5) is not None
