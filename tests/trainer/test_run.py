"""What a run folder says about the run."""

import contextlib
import dataclasses
import json
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pytest

from corerl import __version__
from corerl.config.load import load
from corerl.contracts.config import TrainConfig
from corerl.registry import Entry, Owner, Selected
from corerl.trainer import run as run_module
from corerl.trainer.run import Run, new_folder
from corerl_tools import parts_used


@dataclasses.dataclass
class Width:
    width: float = 0.5


@pytest.fixture
def parts(made_up):
    """Everything is ``mine``, but the policy loss, the runtime and two trackers, which are others'."""

    def selected(kind, name, version, options=None):
        return Selected(Entry(kind, name, lambda: None, Owner(f"acme-{name}", version)), options)

    return dataclasses.replace(
        made_up().parts,
        policy_loss=selected("policy loss", "soft", "1.2", Width(0.25)),
        runtime=selected("runtime", "cluster", "3"),
        trackers=(selected("tracker", "abacus", "4"), selected("tracker", "slate", "5")),
    )


def test_versions_are_those_that_decide_what_is_computed(parts, made_up):
    own = {"corerl": __version__, "corerl-torch": version("corerl-torch")}  # corerl-torch: optimizer and schedule
    assert parts.versions() == own | {made_up().config.plugins.load[0]: "", "acme-soft": "1.2"}


def test_every_part_is_described_with_its_distribution_and_options(parts, made_up, tmp_path):
    config = made_up().config
    run = Run(config, parts, None, tmp_path / "runs" / "now")
    run.describe()
    parts_used.write(parts, run.folder)
    described = {(each["part"], each["name"]): each for each in json.loads((run.folder / "plugins.json").read_text())}
    assert described["policy_loss", "soft"] == {
        "part": "policy_loss",
        "kind": "policy loss",
        "name": "soft",
        "distribution": "acme-soft",
        "version": "1.2",
        "options": {"width": 0.25},
    }
    assert described["strategy", "mine"]["options"] == {}
    assert {name for part, name in described if part == "trackers"} == {"abacus", "slate"}
    assert {part for part, _ in described} == {
        *("adv_estimator", "policy_loss", "strategy", "rollout_backend", "reward_manager", "runtime", "trackers"),
        *("optimizer", "schedule"),
    }
    assert load(TrainConfig, run.folder / "config.yaml") == config


def test_an_infinite_option_is_a_text_of_json(parts, tmp_path):
    width = dataclasses.replace(parts.policy_loss, options=Width(float("inf")))
    parts_used.write(dataclasses.replace(parts, policy_loss=width), tmp_path)
    described = json.loads((tmp_path / "plugins.json").read_text(), parse_constant=pytest.fail)
    assert [each["options"] for each in described if each["name"] == "soft"] == [{"width": "Infinity"}]


def test_a_new_folder_is_named_by_its_time_and_taken_names_get_a_number(made_up, tmp_path, monkeypatch):
    config = made_up().config
    config.trainer.output_dir, config.tracking.experiment_name = str(tmp_path / "out"), "first"
    folder = new_folder(config)
    assert folder.parent == tmp_path / "out" / "first"
    assert re.fullmatch(r"\d{8}-\d{6}", folder.name)
    monkeypatch.setattr(run_module.time, "strftime", lambda form: "20260102-030405")
    for expected in ("20260102-030405", "20260102-030405-2", "20260102-030405-3"):
        assert new_folder(config).name == expected


def test_runs_that_begin_at_the_same_moment_get_folders_of_their_own(made_up, tmp_path, monkeypatch):
    """Each has seen the same name free."""
    config = made_up().config
    config.trainer.output_dir = str(tmp_path / "out")
    monkeypatch.setattr(run_module.time, "strftime", lambda form: "20260102-030405")
    barrier, unused = threading.Barrier(4), run_module.unused

    def at_once(path):
        found = unused(path)
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(1)
        return found

    monkeypatch.setattr(run_module, "unused", at_once)
    with ThreadPoolExecutor(4) as threads:
        made = [each.result() for each in [threads.submit(new_folder, config) for _ in range(4)]]
    numbers = ("", "-2", "-3", "-4")
    assert sorted(each.name for each in made) == [f"20260102-030405{number}" for number in numbers]


def test_the_start_is_recorded_in_utc_and_a_copy_that_is_trained_becomes_a_run_of_its_own(made_up, tmp_path):
    one = made_up()
    one.config.trainer.output_dir = str(tmp_path / "out")
    folder = new_folder(one.config)
    record = json.loads((folder / "run.json").read_text())
    assert record["name"] == folder.name and record["started"].endswith("+00:00")
    copy = Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-backup")))
    for path in (folder, copy):
        Run(one.config, one.parts, None, path).describe()
    assert json.loads((folder / "run.json").read_text()) == record
    later = json.loads((copy / "run.json").read_text())
    assert later["name"] == copy.name and later["started"] > record["started"]


def test_a_folder_of_the_users_home_is_found(made_up, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = made_up().config
    config.trainer.output_dir = "~/out"
    assert new_folder(config).is_relative_to(tmp_path / "out")
