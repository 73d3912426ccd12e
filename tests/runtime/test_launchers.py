"""The variables of a launcher around a command."""

import os

import pytest

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.launchers import leave_launch
from corerl.runtime.local import LocalRuntime


def test_ranks_but_0_and_numbers_but_1_are_named_and_all_places_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"RANK": "0", "LOCAL_RANK": "2", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "node7"}
    given |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "SLURM_PROCID": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    kept = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "RANKING": "1", "MY_RANK": "3", "OMPI_MCA_btl": "tcp"}
    with monkeypatch.context() as patch:
        leave_launch()
        for name, value in (given | kept).items():
            patch.setenv(name, value)
        assert leave_launch() == {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "8"}
        assert {name for name in given if name in os.environ} == set()
        assert {name: os.environ[name] for name in kept} == kept
        assert leave_launch() == {}


def test_the_local_runtime_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    LocalRuntime(RuntimeConfig())
    assert "RANK" not in os.environ
