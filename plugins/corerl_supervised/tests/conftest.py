"""Files of rows, loaded tokenizers, and runs of the commands on a tiny model."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.contracts.config import ModelConfig
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.tokenizer import load_tokenizer

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def write_parquet(tmp_path: Path) -> Callable[..., str]:
    """Writes rows to a parquet file and returns its name."""

    def write(rows: Sequence[Mapping[str, Any]]) -> str:
        pq.write_table(pa.Table.from_pylist(list(rows)), tmp_path / "train.parquet")
        return str(tmp_path / "train.parquet")

    return write


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., str]:
    """Writes rows to a JSONL file and returns its name."""

    def write(rows: Sequence[Mapping[str, Any]], name: str = "rows.jsonl") -> str:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    return write


@pytest.fixture(scope="session")
def tokenizer(tiny_tokenizer_dir: Path) -> ChatTokenizer:
    """The tiny tokenizer, loaded."""
    return load_tokenizer(ModelConfig(path=str(tiny_tokenizer_dir)))


class Trained(NamedTuple):
    """The records of a run, and its folder."""

    records: list[dict[str, float]]
    folder: Path

    @property
    def lasting(self) -> list[dict[str, float]]:
        """The records without times and memory."""
        return [
            {name: value for name, value in record.items() if name.split("/")[0] in ("step", "train", "val")}
            for record in self.records
        ]


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Trained]:
    """``trained(command, section__key=value, …)``: a run of a command on the tiny model, in ``out`` unless named."""
    pytest.importorskip("corerl_fsdp")
    from corerl.config import typed
    from corerl.plugins import load_plugins
    from corerl.telemetry.metrics_log import read_metrics
    from corerl_supervised import config
    from corerl_supervised.plan import make_plan
    from corerl_supervised.run import train
    from corerl_testing.tiny_model import tiny_model

    classes = {"sft": config.SftConfig, "dpo": config.DpoConfig, "reward-model": config.RewardModelConfig}

    def start(command: str, files: Sequence[str], **keys: Any) -> Trained:
        values: dict[str, Any] = {
            "model": {"path": str(tiny_model()), "dtype": "fp32"},
            "output": str(tmp_path / "out"),
            "data": {"train_files": list(files), "train_batch_size": 2, "shuffle": False},
            "optim": {"lr": 1e-2},
            "trainer": {"device": "cpu"},
            "tracking": {"loggers": []},
        }
        for key, value in keys.items():
            section, _, name = key.rpartition("__")
            (values.setdefault(section, {}) if section else values)[name] = value
        folder = train(make_plan(typed.build(classes[command], values), load_plugins((), ())))
        return Trained(read_metrics(folder / "metrics.jsonl"), folder)

    return start
