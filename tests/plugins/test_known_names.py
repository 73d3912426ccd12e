"""The table of names that are known without being installed."""

import json
from pathlib import Path

from corerl.registry import Registries
from corerl.registry.base import KNOWN_NAMES, known_names
from corerl.registry.modules import load_file

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_table_is_current() -> None:
    script = load_file(str(ROOT / "scripts" / "known_names.py"))
    assert KNOWN_NAMES.read_text() == script.render(), "run scripts/known_names.py"


def test_the_kinds_in_the_table_are_those_of_the_registries() -> None:
    of_core = {registry.kind for _, registry in Registries()}
    of_plugins = {"dataset preparer", "environment", "optimizer", "preference loss", "sampler", "schedule", "service"}
    assert set(json.loads(KNOWN_NAMES.read_text())) <= of_core | of_plugins


def test_names_of_all_plugins_are_known() -> None:
    assert known_names("tracker")["wandb"] == "corerl-trackers"
    assert known_names("advantage estimator")["gae"] == "corerl-ppo"
    assert known_names("no such kind") == {}
