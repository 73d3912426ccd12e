"""Tasks in Harbor's format: as rows, and as episodes."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from test_isolation import needs_bubblewrap

from corerl.cli.main import run
from corerl.errors import DataError
from corerl_harness.harbor.data import HarborData, HarborOptions
from corerl_harness.harbor.tasks import read_task
from corerl_harness.scores import ScoringError

TASKS = Path(__file__).parents[3] / "examples" / "agents-harbor" / "tasks"


@pytest.fixture
def task(tmp_path):
    return Path(shutil.copytree(TASKS / "add-numbers", tmp_path / "add-numbers"))


def test_tasks_become_rows(tmp_path):
    assert run(["prepare", "harbor", "--path", str(TASKS), "--out", str(tmp_path)]) == 0
    first, *_, last = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert (
        first["prompt"][0]["content"].startswith("The file numbers.txt")
        and last["reward_model"]["ground_truth"] == "fix-greeting"
    )
    assert first["extra_info"]["harbor"] == str(TASKS / "add-numbers") and first["extra_info"]["agent_seconds"] == 60.0


def test_folders_train_and_test_are_splits(task, tmp_path):
    for split in ("train", "test"):
        shutil.copytree(task, tmp_path / "all" / split / "one")
    splits = HarborData(HarborOptions(str(tmp_path / "all"))).generate()
    assert {name: len(list(rows)) for name, rows in splits.items()} == {"train": 1, "test": 1}


def test_an_image_of_a_task_is_kept_and_a_dockerfile_noted(task):
    (task / "environment" / "Dockerfile").write_text("FROM debian\n")
    [row] = HarborData(HarborOptions(str(task))).generate()["train"]
    assert row.extra_info["image"] is None and row.note == "its Dockerfile is not built"
    (task / "task.toml").write_text('[environment]\ndocker_image = "acme/box:1"\nenv = {A = "b"}\n')
    [row] = HarborData(HarborOptions(str(task))).generate()["train"]
    assert row.extra_info["image"] == "acme/box:1" and row.note == "variables of its task.toml are not passed"


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        ("task.toml", "version = ", r"task\.toml: "),
        ("task.toml", "agent = 3", "agent should be a table, found 3"),
        ("task.toml", "[agent]\ntimeout_sec = -1", "agent.timeout_sec should be a positive number, found -1"),
        ("task.toml", "[[steps]]\nname = 'a'", "several steps"),
        ("tests/test.sh", None, "has no 'tests/test.sh'"),
        ("instruction.md", None, r"has no 'instruction\.md'"),
    ],
)
def test_a_damaged_task_is_named(task, file, content, error):
    (task / file).unlink()
    if content is not None:
        (task / file).write_text(content)
    with pytest.raises(DataError, match=error):
        read_task(task)


def info(task):
    return {"harbor": str(task), "agent_seconds": 20.0, "check_seconds": 20.0}


@needs_bubblewrap
@pytest.mark.parametrize("name", ["add-numbers", "copy-file", "count-lines", "fix-greeting"])
def test_a_solution_is_rewarded_and_an_idle_agent_is_not(play, name):
    solution = (TASKS / name / "solution" / "solve.sh").read_text()
    solved = play("sh solve.sh", isolation="bubblewrap", info={**info(TASKS / name), "files": {"solve.sh": solution}})
    assert solved.reward == 1.0
    assert play("ls", isolation="bubblewrap", info=info(TASKS / name)).reward == 0.0


@needs_bubblewrap
def test_tests_and_solution_are_hidden_from_the_agent_and_parts_are_components(play):
    result = play("ls . /tests; cat /logs/*/*", isolation="bubblewrap", info=info(TASKS / "fix-greeting"))
    assert "test.sh" not in result.artifacts["output"] and "solve.sh" not in result.artifacts["output"]
    assert result.components == {"reward": 0.0, "runs": 1.0}


@needs_bubblewrap
def test_a_reward_of_the_agent_itself_does_not_count(play):
    forged = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"
    assert play(forged, isolation="bubblewrap", info=info(TASKS / "fix-greeting")).reward == 0.0


@needs_bubblewrap
def test_tests_that_write_no_reward_are_an_error(play, task):
    (task / "tests" / "test.sh").write_text("exit 0")
    with pytest.raises(ScoringError, match="wrote neither"):
        play("true", isolation="bubblewrap", info=info(task))


def test_a_harbor_task_needs_its_paths(play):
    with pytest.raises(DataError, match="set isolation to another than none"):
        play("true", info=info(TASKS / "add-numbers"))
