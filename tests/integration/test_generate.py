"""``corerl generate``: what is written, and that a kill loses and repeats nothing."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from corerl.cli.main import run
from corerl_testing.lives import Command
from corerl_tools.evaluation.files import read_rows

PROMPTS = 40


@pytest.fixture
def arguments(material: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """Arguments that write 3 responses to each of 40 prompts in parts of 2."""

    def given(out: str = "out.parquet", *further: str) -> list[str]:
        data = [f"--model={material}/model", f"--data={material}/data/train.parquet", "--n=3", "--batch-size=2"]
        keys = ["data.max_response_length=6", "actor.device=cpu"]
        return ["generate", *data, f"--out={tmp_path / out}", *keys, *further]

    return given


def rows(file: Path) -> list[dict[str, Any]]:
    return [dict(row) for _, row in read_rows(str(file))]


def test_every_prompt_has_its_responses_with_their_counts_seeds_and_log_probs(
    arguments: Callable[..., list[str]], material: Path, tmp_path: Path
) -> None:
    assert run(arguments("out.parquet", "--log-probs")) == 0
    data = pq.read_table(material / "data" / "train.parquet").to_pylist()
    written = rows(tmp_path / "out.parquet")
    assert [(row["prompt_index"], row["sample"]) for row in written] == [
        (p, s) for p in range(PROMPTS) for s in range(3)
    ]
    for row in written:
        source = data[row["prompt_index"]]
        assert (row["prompt"], row["ground_truth"]) == (source["prompt"], source["reward_model"]["ground_truth"])
        assert row["extra_info"] == source["extra_info"]
        assert len(row["token_ids"]) == len(row["log_probs"]) == row["response_length"]
        assert (row["finish_reason"] == "length") <= (row["response_length"] == row["max_response_length"] == 6)
        assert all(log_prob < 0 for log_prob in row["log_probs"])
    assert len({row["seed"] for row in written}) == PROMPTS
    assert len({row["response"] for row in written}) > PROMPTS  # samples differ
    assert not (tmp_path / "out.parquet.parts").exists()


@pytest.mark.xdist_group("ranks")  # they have the process that commands are forked from
def test_killed_and_started_again_it_writes_what_it_would_have_written(
    arguments: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments("whole.parquet")) == 0
    parts = tmp_path / "out.parquet.parts"
    for complete in (2, 7):
        command = Command(arguments(), tmp_path / "log")
        deadline = time.monotonic() + 120
        while len(list(parts.glob("part-*"))) < complete and not command.is_over(0.002):
            assert time.monotonic() < deadline
        command.kill()
        assert command.end() == -signal.SIGKILL, "it was done before it could be killed"
        assert not (tmp_path / "out.parquet").exists()
    (parts / ".part-00000030-00000032.parquet.tmp").write_bytes(b"half a par")
    kept = {path.name: path.stat().st_mtime_ns for path in parts.glob("part-*")}
    capsys.readouterr()
    assert run(arguments()) == 0
    assert f"{2 * len(kept)} of {PROMPTS} prompts were generated before" in capsys.readouterr().err
    assert rows(tmp_path / "out.parquet") == rows(tmp_path / "whole.parquet")
    assert not parts.exists()


def test_a_file_that_is_complete_is_left_as_it_is(
    arguments: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments()) == 0
    before = (tmp_path / "out.parquet").stat().st_mtime_ns
    assert run(arguments()) == 0
    assert "already complete" in capsys.readouterr().err
    assert (tmp_path / "out.parquet").stat().st_mtime_ns == before


def test_responses_to_another_request_are_not_mixed_in_and_not_replaced_unasked(
    arguments: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments()) == 0
    first = rows(tmp_path / "out.parquet")
    assert run(arguments("out.parquet", "trainer.seed=1")) == 2
    assert "another seed (0, and now 1)" in capsys.readouterr().err
    assert run(arguments("out.parquet", "trainer.seed=1", "--overwrite")) == 0
    assert [row["response"] for row in rows(tmp_path / "out.parquet")] != [row["response"] for row in first]


def test_parts_of_another_request_are_not_mixed_in(
    arguments: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = tmp_path / "out.parquet.parts"
    parts.mkdir()
    (parts / "request.json").write_text('{"model": "another"}')
    assert run(arguments()) == 2
    assert "another model ('another'" in capsys.readouterr().err


def test_greedy_is_one_response_that_no_seed_changes(arguments: Callable[..., list[str]], tmp_path: Path) -> None:
    for seed in (0, 1):
        assert run(arguments(f"{seed}.parquet", "--greedy", f"trainer.seed={seed}")) == 0
    first, second = ([row["response"] for row in rows(tmp_path / f"{seed}.parquet")] for seed in (0, 1))
    assert first == second
    assert len(first) == PROMPTS


def test_a_training_config_says_the_rest(material: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"""
        model: {{path: {material}/model}}
        data: {{val_files: [{material}/data/test.parquet], max_response_length: 4}}
        actor: {{device: cpu}}
        rollout: {{n: 2, options: {{max_batch_size: 4}}}}
        """
    )
    assert run(["generate", str(config), f"--out={tmp_path}/out.parquet"]) == 0
    assert len(rows(tmp_path / "out.parquet")) == 8 * 2


def test_without_prompts_it_says_what_to_give(
    material: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", f"--model={material}/model", f"--out={tmp_path}/out.parquet"]) == 2
    assert "data.val_files" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
