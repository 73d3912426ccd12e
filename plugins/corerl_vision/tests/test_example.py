"""The commands of examples/vision/run.sh, in a short form."""

import json
import shlex
from pathlib import Path

import pytest

from corerl.cli.main import run

ROOT = Path(__file__).parents[3]
SCORE = "val-core/corerl/shapes/reward/mean@1"
SHORT = {
    "prepare": ["--train-size", "400", "--test-size", "50", "--questions", "colour"],
    "train": ["trainer.total_training_steps=8", "trainer.test_freq=8", "rollout.n=8"],
}


def test_a_random_model_begins_to_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours alone; of 300 tokens, the answers become likely within eight steps."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = (ROOT / "examples" / "vision" / "run.sh").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.startswith("corerl "):
            _, *words = shlex.split(line.replace('"$@"', ""))
            assert run([*words, *SHORT.get(words[0], [])]) == 0
    [log] = tmp_path.glob("runs/vision/*/metrics.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    first, *_, last = [row[SCORE] for row in rows if SCORE in row]
    assert first < 0.05 and last > 0.1
