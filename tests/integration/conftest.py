"""What runs need: arithmetic data and a random model of a few thousand parameters; a workplace for runs that fail."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.cli.main import run

SIZES = ["--operations", "+", "--max-operand", "9", "--train-size", "40", "--test-size", "8", "--sft-size", "40"]
SHAPE = ["--vocab-size", "300", "--hidden-size", "16", "--layers", "1", "--heads", "2", "--kv-heads", "1"]


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``data/train.parquet`` (40 rows), ``test.parquet``, ``sft.parquet`` and ``model/``."""
    for plugin in ("corerl_hf", "corerl_fsdp", "corerl_grpo", "corerl_rewards"):
        pytest.importorskip(plugin)
    folder = tmp_path_factory.mktemp("material")
    data = folder / "data"
    assert run(["prepare", "arithmetic", "--out", str(data), *SIZES]) == 0
    corpus = str(data / "train.parquet")
    assert run(["tiny-model", "--out", str(folder / "model"), "--corpus", corpus, *SHAPE]) == 0
    return folder


SCORERS_AND_LOSSES = """
from corerl.contracts.policy_losses import LossOutput

calls = 0

def odd_raises(response, ground_truth, data_source, extra_info):
    if int(ground_truth) % 2:
        raise ValueError(f"cannot score {ground_truth}")
    return float(len(response))

def always_raises(response, ground_truth, data_source, extra_info):
    raise ConnectionError("the sandbox is down")

def length(response, ground_truth, data_source, extra_info):
    return float(len(response))

def raises_in_third_step(response, ground_truth, data_source, extra_info):
    global calls
    calls += 1
    return float(len(response)) if calls <= 32 else always_raises(response, ground_truth, data_source, extra_info)

def nan_in_second_step(inputs):
    global calls
    calls += 1
    return LossOutput(inputs.log_probs * (float("nan") if calls > 2 else 1.0))

def one_number(inputs):
    return LossOutput(-(inputs.advantages * inputs.log_probs).sum())
"""


class Outcome(NamedTuple):
    """What a command came to; ``error`` is its line ``error: …``, '' when there is none."""

    code: int
    error: str
    stderr: str


class Workplace(NamedTuple):
    """A folder with a config; ``runs`` is where its runs go."""

    folder: Path
    config: Path
    runs: Path

    @property
    def run_folders(self) -> list[Path]:
        return list(self.runs.glob("*/*"))

    @property
    def half_written(self) -> list[Path]:
        return list(self.folder.rglob("*.tmp"))


@pytest.fixture
def workplace(material: Path, tmp_path: Path) -> Workplace:
    """A config that trains 2 steps of 2 updates, and ``parts.py``."""
    config = tmp_path / "config.yaml"
    config.write_text(
        f"""
        model: {{path: {material}/model}}
        data: {{train_files: [{material}/data/train.parquet], train_batch_size: 8, max_prompt_length: 64,
               max_response_length: 4}}
        actor: {{device: cpu, optim: {{lr: 1e-2, weight_decay: 0.1}}, ppo_mini_batch_size: 4}}
        rollout: {{n: 2}}
        trainer: {{total_training_steps: 2, output_dir: {tmp_path}/runs}}
        """
    )
    (tmp_path / "parts.py").write_text(SCORERS_AND_LOSSES)
    return Workplace(tmp_path, config, tmp_path / "runs")


Train = Callable[..., Outcome]


@pytest.fixture
def train(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> Train:
    """``train("key=value", …)``: run the command in this process."""

    def start(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run(["train", str(workplace.config), *arguments])
        stderr = capsys.readouterr().err
        assert "Traceback" not in stderr
        lines = [line for line in stderr.splitlines() if line.startswith("error: ")]
        assert len(lines) == (code in (1, 2, 75)), stderr
        assert not lines or stderr.endswith(f"{lines[0]}\n")
        return Outcome(code, lines[0] if lines else "", stderr)

    return start


@pytest.fixture
def refused(workplace: Workplace, train: Train) -> Callable[..., None]:
    """``refused(arguments, words)``: exit code 2, an error with all the words, and no run folder."""

    def check(arguments: Sequence[str], *words: str) -> None:
        outcome = train(*arguments)
        assert outcome.code == 2
        for word in words:
            assert word in outcome.error
        assert not workplace.runs.exists()
        assert not workplace.half_written

    return check


@pytest.fixture
def rows(material: Path) -> list[dict[str, Any]]:
    """The rows of the training file, to spoil."""
    read: list[dict[str, Any]] = pq.read_table(material / "data" / "train.parquet").to_pylist()
    return read


@pytest.fixture
def write(tmp_path: Path) -> Callable[[list[dict[str, Any]]], str]:
    """Write rows to a parquet file; returns the override that trains on it."""

    def to_file(rows: list[dict[str, Any]]) -> str:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "spoilt.parquet")
        return f"data.train_files=[{tmp_path}/spoilt.parquet]"

    return to_file


MORTAL_ENGINE = """
import asyncio
import json
import os
import subprocess
import threading
from pathlib import Path

from corerl import hookimpl
from corerl.errors import RunError
from corerl_hf.options import HfOptions

# operation -> how many calls are left to the death of this rank's engine
coming = Path(__file__).with_suffix(f".{os.environ.get('RANK', '0')}.json")
counting = threading.Lock()


def mortal(model, rollout, *, device, options):
    from corerl_hf.backend import HfBackend

    class Mortal(HfBackend):
        # hf, which lives as long as a process of its own does

        process = None

        def __init__(self):
            self.count("start")
            super().__init__(model, rollout, device=device, options=options)
            self.process = subprocess.Popen(["sleep", "600"])

        def health(self):
            super().health()
            if self.process is not None and self.process.poll() is not None:
                raise RunError(f"the engine (process {self.process.pid}) ended")

        def is_due(self, operation):
            with counting:  # weights are sent while another thread generates
                left = json.loads(coming.read_text()) if coming.exists() else {}
                left[operation] = left.get(operation, 0) - 1
                coming.write_text(json.dumps(left))
                return left[operation] == 0

        def count(self, operation):
            if not self.is_due(operation):
                return
            if operation == "start":
                raise RunError("no room for another engine")
            self.process.kill()
            if operation == "worker":
                os.kill(os.getpid(), 9)
            self.process.wait()
            self.health()

        async def generate(self, requests):
            self.count("worker")
            self.count("generate")
            if self.is_due("late"):
                await asyncio.Event().wait()
            return await super().generate(requests)

        def update_weights(self, weights, version, *, verify=False):
            self.count("update_weights")
            super().update_weights(weights, version, verify=verify)

        def close(self):
            process, self.process = self.process, None
            process.kill()
            process.wait()
            super().close()

    return Mortal()


@hookimpl
def register_rollout_backends(register):
    register("mortal", mortal, options=HfOptions, summary="ends when it is told to")
"""


@pytest.fixture
def mortal() -> Callable[..., Path]:
    """``mortal(folder, {operation: call})``: a plugin whose engine ``mortal`` ends at that call, of one rank.

    ``worker``: the process that has the engine ends, at that call of ``generate``. ``late``: that call does not return.
    ``start``: that start fails.
    """

    def write(folder: Path, deaths: dict[str, int], rank: int = 0) -> Path:
        file = folder / "mortal.py"
        file.write_text(MORTAL_ENGINE)
        file.with_suffix(f".{rank}.json").write_text(json.dumps(deaths))
        return file

    return write
