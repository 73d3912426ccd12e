"""Runs that go wrong midway, and runs that are interrupted."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from corerl.checkpoint import manifest
from corerl.checkpoint.store import CheckpointStore
from corerl.cli.main import run
from corerl.errors import SaveError
from corerl.telemetry.metrics_log import read_metrics
from corerl_testing.lives import Life
from corerl_tools.status import read_status

# Runs that go wrong midway


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


def test_responses_whose_scorer_raises_are_left_out_counted_and_shown(train, workplace):
    outcome = train(f"reward.scorer={workplace.folder}/parts.py:odd_raises", "reward.max_error_rate=1")
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
    outcome = train(
        f"reward.scorer={workplace.folder}/parts.py:always_raises",
        val,
        "actor.use_kl_loss=true",
        "reward.max_error_rate=1",
    )
    assert outcome.code == 0
    [folder] = workplace.run_folders
    before, after = (weights(path) for path in (material / "model", folder / "checkpoints/global_step_2/huggingface"))
    assert all(after[name].equal(before[name]) for name in before)
    assert "16 of 16 responses could not be scored" in outcome.stderr
    assert "step 2: no response has a score; the weights are not updated" in outcome.stderr
    assert "step 0, evaluation: 8 of 8 responses could not be scored" in outcome.stderr
    assert (folder / "report.html").is_file()
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


forked = pytest.mark.xdist_group("ranks")  # these tests have the process that runs are forked from


class InterruptedRun(NamedTuple):
    code: int
    output: str
    folder: Path


@pytest.fixture
def interrupted(workplace: Any) -> InterruptedRun:
    """A run of its own process that gets Ctrl-C after its second checkpoint."""
    arguments = ["trainer.total_training_steps=100000", "trainer.save_freq=1", "trainer.max_ckpt_to_keep=2"]
    log = workplace.folder / "log"
    life = Life(workplace.config, arguments, log)
    deadline = time.monotonic() + 120
    while not list(workplace.runs.glob("*/*/checkpoints/global_step_2")):
        assert not life.is_over(0.02) and time.monotonic() < deadline
    life.kill(signal.SIGINT)
    code = life.end(within=30)
    [folder] = workplace.run_folders
    return InterruptedRun(code, log.read_text(), folder)


SLOW = """
import time
from corerl.trainer import build

def slow(*arguments):
    print("starting", flush=True)
    time.sleep(60)

build.RolloutWorker = slow
"""


@pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="set CORERL_CHAOS=1")
@forked
def test_a_signal_while_the_workers_start_ends_the_run_at_once(workplace):
    (workplace.folder / "slow.py").write_text(SLOW)
    log = workplace.folder / "log"
    life = Life(workplace.config, [f"plugins.load=[{workplace.folder}/slow.py]"], log)
    deadline = time.monotonic() + 120
    while not (log.exists() and "starting\n" in log.read_text()):
        assert not life.is_over(0.02) and time.monotonic() < deadline
    life.kill(signal.SIGTERM)
    assert life.end(within=30) == 143
    said = log.read_text()
    assert "SIGTERM: the run ends; a second signal ends it at once" in said
    assert "Traceback" not in said and not workplace.run_folders


@forked
def test_ctrl_c_leaves_readable_metrics_and_whole_checkpoints_to_resume_from(interrupted, train, workplace):
    assert interrupted.code == 130
    assert "\nstopped: the same command goes on from the last checkpoint\n" in interrupted.output
    assert "SIGINT: the run saves a checkpoint and ends" in interrupted.output
    assert "Traceback" not in interrupted.output
    assert not workplace.half_written
    steps = [json.loads(line)["step"] for line in (interrupted.folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))
    checkpoints = interrupted.folder / "checkpoints"
    latest = int((checkpoints / "latest").read_text().removeprefix("global_step_"))
    assert latest == steps[-1]  # nothing is lost
    for folder in checkpoints.glob("global_step_*"):
        assert manifest.damage(folder) == ""
    total = f"trainer.total_training_steps={latest + 1}"
    assert train(f"trainer.resume_mode={interrupted.folder}", total).code == 0
    assert read_metrics(interrupted.folder / "metrics.jsonl")[-1]["step"] == latest + 1


def test_a_deletion_that_is_cut_off_leaves_no_half_of_a_checkpoint(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, max_to_keep=1)

    def save(step: int) -> None:
        store.copy(step, {})
        store.write({}, {})
        store.settle(wait=True)

    save(1)

    def interrupted_halfway(folder: Path, ignore_errors: bool) -> None:
        if (folder / "state.json").is_file():
            (folder / "state.json").unlink()
            raise OSError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupted_halfway)
        with pytest.raises(SaveError, match="cut off"):
            save(2)
    assert [path.name for path in tmp_path.glob("global_step_*")] == ["global_step_2"]
    save(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_3", "latest"]


def test_an_error_while_batches_are_collected_ahead_ends_the_run(train):
    outcome = train("trainer.max_staleness=2", "rollout.timeout=1e-6")
    assert outcome.code == 1
    assert "step 1: 16 groups failed twice each, as many as a step trains: 16 of 16 prompts had no" in outcome.error


FORGETFUL = """
from corerl import hookimpl
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions

class Forgetful(HfBackend):
    def update_weights(self, weights, version, *, verify=False):
        lost = ((name, tensor * (0 if "down_proj" in name else 1)) for name, tensor in weights)
        super().update_weights(lost, version)

@hookimpl
def register_rollout_backends(register):
    register("forgetful", Forgetful, summary="loses one matrix of each layer", options=HfOptions)
"""


def test_an_engine_that_loses_weights_stops_the_run_by_default(train, workplace):
    (workplace.folder / "forgetful.py").write_text(FORGETFUL)
    outcome = train("--plugin", str(workplace.folder / "forgetful.py"), "rollout.name=forgetful")
    assert outcome.code == 1
    assert re.search(r"max_log_prob_diff=0\.00\d+ is the most: the engine has other weights", outcome.error)


def test_an_engine_that_disagrees_with_the_trainer_stops_the_run(train):
    key = "algorithm.rollout_correction.max_log_prob_diff"
    assert train(f"{key}=1e-3").code == 0
    outcome = train(f"{key}=1e-12")
    assert outcome.code == 1 and f"{key}=1e-12 is the most" in outcome.error


FULL_DISK = """
import resource

from corerl import hookimpl

@hookimpl
def step_ended(step):
    limits = {3: LIMIT, 5: resource.RLIM_INFINITY}
    if step in limits:  # no file may be longer
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits[step], resource.RLIM_INFINITY))
"""


@pytest.mark.parametrize(("on_save_error", "code"), [("continue", 0), ("stop", 1)])
def test_a_checkpoint_that_cannot_be_written_leaves_those_before_it(train, workplace, on_save_error, code):
    (workplace.folder / "full_disk.py").write_text(f"LIMIT = 20_000\n{FULL_DISK}")
    keys = ["total_training_steps=6", "save_freq=2", "async_save=false", f"on_save_error={on_save_error}"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        outcome = train("--plugin", str(workplace.folder / "full_disk.py"), *(f"trainer.{key}" for key in keys))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert outcome.code == code
    assert "global_step_4/actor could not be written: " in outcome.stderr and "File too large" in outcome.stderr
    [folder] = workplace.run_folders
    present = {path.name for path in (folder / "checkpoints").iterdir()}
    assert present == {"latest", "global_step_2"} | ({"global_step_6"} if code == 0 else set())
    assert all(manifest.damage(folder / "checkpoints" / name) == "" for name in present - {"latest"})
    if code == 1:
        assert outcome.error.startswith("error: ") and "global_step_4" in outcome.error
    else:
        assert (
            "bytes free; global_step_2 is kept; training continues (trainer.on_save_error=continue)" in outcome.stderr
        )


def test_nothing_that_a_full_disk_does_not_take_ends_a_run(train, workplace):
    """Of step 4 neither checkpoint nor metrics nor sample rollouts can be written, of step 5 no sample rollouts."""
    (workplace.folder / "full_disk.py").write_text(f"LIMIT = 500\n{FULL_DISK}")
    keys = ["total_training_steps=6", "save_freq=2", "log_rollouts_freq=1", "save_huggingface=always"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        outcome = train("--plugin", str(workplace.folder / "full_disk.py"), *(f"trainer.{key}" for key in keys))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert outcome.code == 0, outcome.stderr
    [folder] = workplace.run_folders
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"latest", "global_step_2", "global_step_6"}
    assert [record["step"] for record in read_metrics(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert sorted(path.stem[-1] for path in (folder / "rollouts").iterdir()) == ["1", "2", "3", "6"]
    assert "step 4: the sample rollouts could not be written: [Errno 27]" in outcome.stderr
    assert "metrics.jsonl cannot be written (File too large; " in outcome.stderr
    assert "bytes free): steps wait in memory for room" in outcome.stderr
    assert not workplace.half_written


def test_an_error_before_an_update_loses_no_step_that_was_done(workplace, capsys):
    scorer = f"reward.scorer={workplace.folder}/parts.py:raises_in_third_step"
    arguments = [scorer, "reward.manager=naive", "trainer.total_training_steps=4"]
    assert run(["train", str(workplace.config), *arguments]) == 1
    assert "error: step 3: 16 of 16 responses could not be scored" in capsys.readouterr().err
    [folder] = workplace.run_folders
    assert (folder / "checkpoints" / "latest").read_text() == "global_step_2"
    assert [record["step"] for record in read_metrics(folder / "metrics.jsonl")] == [1, 2]


FILLS = """
from corerl import hookimpl

@hookimpl
def step_ended(run, step):
    if step > 2:
        with open(FILLER, "ab", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
"""


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MiB, of which the kernel says itself that it is full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_of_a_run_whose_disk_is_full_to_its_end_nothing_is_lost(train, workplace, small_disk):
    (workplace.folder / "fills.py").write_text(f"FILLER = {str(small_disk / 'filler')!r}\n{FILLS}")
    keys = ["total_training_steps=6", "save_freq=2", "async_save=false", f"output_dir={small_disk}/runs"]
    outcome = train("--plugin", str(workplace.folder / "fills.py"), *(f"trainer.{key}" for key in keys))
    assert outcome.code == 1
    [folder] = small_disk.glob("runs/*/*")
    checkpoints = folder / "checkpoints"
    assert "global_step_6" in outcome.error and "No space left on device" in outcome.error
    assert re.search(rf"{checkpoints}\S* has [\d,]+ bytes free", outcome.error)
    assert re.search(rf"metrics.jsonl cannot be written \(No space left on device; {folder} has", outcome.stderr)
    whole = [path.name for path in checkpoints.glob("global_step_*") if manifest.damage(path) == ""]
    assert whole == [(checkpoints / "latest").read_text()]
    assert [record["step"] for record in read_metrics(folder / "metrics.jsonl")] == list(range(1, 7))
    status = read_status(folder)
    assert status.state == "failed" and "No space left" in status.error
    assert not [path.name for path in folder.rglob("*") if path.suffix == ".tmp" or path.name == ".reserve"]
    (small_disk / "filler").unlink()
    resumed = [f"trainer.{key}" for key in (*keys, f"resume_mode={folder}", "resume_with_changes=true")]
    assert train(*resumed).code == 0
    assert [record["step"] for record in read_metrics(folder / "metrics.jsonl")] == list(range(1, 7))


@pytest.mark.parametrize(
    "key", ["actor.policy_loss=FILE:end", "algorithm.adv_estimator=FILE:end", "data.custom_cls=FILE:end"]
)
def test_sys_exit_in_code_that_a_config_names_is_a_failure_with_its_place(train: Any, workplace: Any, key: str) -> None:
    file = workplace.folder / "ends.py"
    file.write_text("def end(*_, **__):\n    raise SystemExit(0)\n")
    outcome = train(key.replace("FILE", str(file)))
    assert (outcome.code, outcome.error.endswith(f"SystemExit: 0 ({file}, line 2)")) == (1, True)
    for folder in workplace.run_folders:
        assert json.loads((Path(folder) / "status.json").read_text())["state"] == "failed"
