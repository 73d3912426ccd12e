"""Commands where an event loop runs, as in a cell of a notebook."""

import asyncio
import json
import shutil
import threading
from pathlib import Path
from typing import Any

from corerl.cli.main import run


def scores(workplace: Any) -> list[float]:
    """Of the steps of the only run, which is removed."""
    [folder] = workplace.run_folders
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(folder)
    return [record["critic/score/mean"] for record in records if "critic/score/mean" in record]


def in_a_coroutine(*arguments: str) -> int:
    async def cell() -> int:
        code = run(arguments)
        await asyncio.sleep(0)
        return code

    return asyncio.run(cell())


def in_a_thread(*arguments: str) -> int:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run(arguments)))
    thread.start()
    thread.join(120)
    return codes[0]


def test_a_training_in_a_coroutine_and_in_a_thread_gives_the_same_scores(workplace: Any) -> None:
    arguments = ["train", str(workplace.config), f"reward.scorer={workplace.folder}/parts.py:length"]
    found = []
    for call in (lambda *words: run(words), in_a_coroutine, in_a_thread):
        assert call(*arguments) == 0
        found.append(scores(workplace))
    assert len(found[0]) == 2 and found[0] == found[1] == found[2]


def test_a_training_with_older_weights_runs_in_a_coroutine(workplace: Any) -> None:
    assert in_a_coroutine("train", str(workplace.config), "trainer.max_staleness=1") == 0
    assert len(scores(workplace)) == 2


def test_other_commands_run_in_a_coroutine(workplace: Any, tmp_path: Path) -> None:
    config, responses = str(workplace.config), str(tmp_path / "r.parquet")
    prompts = "data.val_files=${data.train_files}"
    assert in_a_coroutine("check", config) == 0
    assert in_a_coroutine("generate", config, prompts, "--out", responses) == 0
    assert in_a_coroutine("eval", responses) == 0
    assert in_a_coroutine("simulate", config, "--gpus", "2", "--steps", "1", "--most", "1") == 0
