"""Sample rollouts of a step."""

from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from corerl.contracts.config import ModelConfig
from corerl.data.tokenizer import load_tokenizer
from corerl.plugins import Plugins


@pytest.fixture
def write(trainer, batch, tiny_tokenizer_dir):
    """``write(plugins=None)``: the sample rollouts of step 1 of a run, with the tokens of one response."""

    def write(plugins=None):
        made = trainer(trainer__log_rollouts_tokens=1)
        made.at(*batch())
        made.batch.hook = (plugins or made.run.plugins).hook
        made.batch.tokenizer = load_tokenizer(ModelConfig(str(tiny_tokenizer_dir)))
        made.records.write_rollouts(1, made.batch)

    return write


def test_sample_rollouts_have_the_number_of_their_step_and_tokens_of_some_responses(write, tmp_path):
    write()
    [file] = (tmp_path / "rollouts").iterdir()
    assert file.name == "step_000001.parquet"
    table = pq.read_table(file).to_pylist()
    assert [row["score"] for row in table] == [1.0, 0.0]
    assert [row["advantages"] for row in table] == [[1.0, 1.0], None]


def test_rollouts_that_cannot_be_written_are_printed_and_the_run_goes_on(write, tmp_path, capsys):
    (tmp_path / "rollouts").write_text("a file")
    write()
    assert "step 1: the sample rollouts could not be written: " in capsys.readouterr().err


def test_without_a_plugin_that_writes_them_its_distribution_is_named(write, tmp_path, capsys):
    write(SimpleNamespace(hook=Plugins(disable=["corerl-tools"]).hook))
    assert capsys.readouterr().err == ("step 1: no plugin writes the sample rollouts (pip install corerl-tools)\n")
    assert not (tmp_path / "rollouts").exists()
