"""What runs need: arithmetic data and a random model of a few thousand parameters."""

from pathlib import Path

import pytest

SIZES = ["--operations", "+", "--max-operand", "9", "--train-size", "40", "--test-size", "8", "--sft-size", "40"]
SHAPE = ["--vocab-size", "300", "--hidden-size", "16", "--layers", "1", "--heads", "2", "--kv-heads", "1"]


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``data/train.parquet`` (40 rows), ``test.parquet``, ``sft.parquet`` and ``model/``."""
    for plugin in ("corerl_hf", "corerl_fsdp", "corerl_grpo", "corerl_rewards"):
        pytest.importorskip(plugin)
    from corerl.cli.main import run

    folder = tmp_path_factory.mktemp("material")
    data = folder / "data"
    assert run(["prepare", "arithmetic", "--out", str(data), *SIZES]) == 0
    corpus = str(data / "train.parquet")
    assert run(["tiny-model", "--out", str(folder / "model"), "--corpus", corpus, *SHAPE]) == 0
    return folder
