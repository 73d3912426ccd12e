"""Metrics with odd names and numbers: what each tracker stored of them, and of the other metrics of their steps."""

import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from stored import READERS

from corerl.contracts.trackers import TrackedRun
from corerl.plugins import Plugins
from corerl_trackers import clearml, valid, wandb
from corerl_trackers.valid import Names

ODD = [
    "a/../b",
    "/x",
    "a//b",
    "..",
    "",
    "x" * 251,
    "line\nbreak",
    "half \ud800",
    "a@b",
    "a_at_b",
    "A/b",
    "emoji/😀",
    "_step",
]
ODD_VALUE = 15 / 64
"""which float32 holds exactly"""
NUMBERS = {"nan": math.nan, "inf": -math.inf, "largest": 1e308, "huge": 10**400}


def test_names_are_paths_of_printable_characters_and_each_is_of_one_metric() -> None:
    names = Names()
    assert [names(each) for each in ("critic/score/mean", "val-core/a b/mean@8", "π")] == [
        *("critic/score/mean", "val-core/a b/mean@8", "π")
    ]
    assert [names(each) for each in ("a/../b", "/x/./y/", "q//r", "..", "")] == ["a/__/b", "x/_/y", "q/r", "__", "_"]
    assert [names(each) for each in ("line\nbreak", "half \ud800")] == ["line_break", "half _"]
    given = ["q/r/", "Q/R", "z" * 250, "z" * 251, "z" * 252]
    found = [names(each) for each in given]
    assert found[2] == given[2] and len({each.lower() for each in [*found, "q/r"]}) == 6
    assert max(map(len, found)) == 250 and found == [names(each) for each in given]


def test_names_follow_the_alphabet_of_a_library() -> None:
    names = Names(r"[^\w\-. /:]", "_at_", 12)
    assert [names(each) for each in ("mean@8", "a{b}", "q:r s")] == ["mean_at_8", "a_b_", "q:r s"]
    # 3 letters, _ and the first 8 digits of sha256("abcdefghijklm") by coreutils' sha256sum
    assert names("abcdefghijklm") == "abc_ff10304f"


def test_a_form_of_a_librarys_own_keeps_metrics_apart() -> None:
    titled = Names(form=clearml.titled)
    given = ["a", "a/a", "b", "c/d", "c"]
    found = [titled(each) for each in given]
    assert found[0] == "a/a" and found[2:] == ["b/b", "c/d", "c/c"] and len(set(found)) == 5
    own = Names(form=wandb.foreign)
    found = [own(each) for each in ("_step", "metric_step", "_timestamp", "a/_step")]
    assert found[0] == "metric_step" and found[2:] == ["metric_timestamp", "a/_step"] and len(set(found)) == 4


def test_numbers_are_floats_and_steps_are_whole_numbers_that_each_library_takes() -> None:
    assert [valid.number(each) for each in (10**400, -(10**400), True, 3)] == [math.inf, -math.inf, 1.0, 3.0]
    assert [valid.step(each) for each in (-1, 0, 7, 2**63)] == [0, 0, 7, 2**48 - 1]
    assert valid.cells([["half \ud800", None, 1.0]]) == [["half ?", None, 1.0]]


def opened(name: str, folder: Path, **options: Any) -> Any:
    selected = Plugins().registries.trackers.select({"name": name, **options}, "tracking.loggers[0]")
    return selected.load()(TrackedRun("project", "trial", folder, {}, 3))


OPTIONS: dict[str, dict[str, Any]] = {
    "wandb": {"mode": "offline"},
    "swanlab": {"mode": "offline"},
    "clearml": {"offline": True},
}


@pytest.mark.parametrize("name", READERS)
def test_a_metric_with_an_odd_name_or_number_is_stored_and_costs_no_other(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("CLEARML_CACHE_DIR", str(tmp_path / "cache"))
    if name == "trackio":
        for module in ("trackio.utils", "trackio.sqlite_storage"):  # TRACKIO_DIR is read when they are imported
            if hasattr(sys.modules[module], "TRACKIO_DIR"):
                monkeypatch.setattr(f"{module}.TRACKIO_DIR", tmp_path / "trackio")
    tracker = opened(name, tmp_path, **OPTIONS.get(name, {}))
    for step, odd in enumerate(ODD):
        tracker.log({"critic/score/mean": 0.5, odd: ODD_VALUE, "z": 2.0}, step)
    for step, (of, value) in enumerate(NUMBERS.items(), len(ODD)):
        tracker.log({"critic/score/mean": 0.5, f"odd/{of}": value, "z": 2.0}, step)
    last = len(ODD) + len(NUMBERS)
    tracker.log({f"many/{number}": 1.0 for number in range(1500)} | {"critic/score/mean": 0.5, "z": 2.0}, last)
    tracker.log_samples(last, ["text"], [["half \ud800"]])
    folder = Path(tracker._task.get_offline_mode_folder()) if name == "clearml" else tmp_path
    tracker.close()
    stored, deadline = READERS[name](folder), time.monotonic() + 30
    while ("z", last) not in stored and time.monotonic() < deadline:  # a process of the library's own may still write
        time.sleep(0.1)
        stored = READERS[name](folder)
    for each, value in (("critic/score/mean", 0.5), ("z", 2.0)):
        assert [stored[each, step] for step in range(last + 1)] == [value] * (last + 1)
    assert sum(value == ODD_VALUE for value in stored.values()) == len(ODD)
    assert sum(metric.startswith("many/") for metric, _ in stored) == 1500
    numbers = {metric: value for (metric, _), value in stored.items() if metric.startswith("odd/")}
    if name == "clearml":  # which would show what is not finite as 0
        assert numbers == {"odd/largest": 1e308}
        return
    assert math.isnan(numbers["odd/nan"]) and numbers["odd/inf"] < -1e308 and numbers["odd/huge"] > 1e308
    assert numbers["odd/largest"] == 1e308 or name == "tensorboard"  # which has floats of 32 bits
