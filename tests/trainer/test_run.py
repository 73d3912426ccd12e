"""What a run folder says about the run."""

import dataclasses
import json
import re
from importlib.metadata import version

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


def test_a_new_folder_is_named_by_its_time_and_taken_names_get_a_number(made_up, tmp_path, monkeypatch):
    config = made_up().config
    config.trainer.output_dir, config.tracking.experiment_name = str(tmp_path / "out"), "first"
    folder = new_folder(config)
    assert folder.parent == tmp_path / "out" / "first"
    assert re.fullmatch(r"\d{8}-\d{6}", folder.name)
    assert not folder.exists()
    monkeypatch.setattr(run_module.time, "strftime", lambda form: "20260102-030405")
    for expected in ("20260102-030405", "20260102-030405-2", "20260102-030405-3"):
        assert new_folder(config).name == expected
        new_folder(config).mkdir(parents=True)


def test_a_folder_of_the_users_home_is_found(made_up, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = made_up().config
    config.trainer.output_dir = "~/out"
    assert new_folder(config).is_relative_to(tmp_path / "out")
