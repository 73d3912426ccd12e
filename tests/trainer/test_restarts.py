"""What outlives the workers of a run."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from corerl.checkpoint.resume import taken
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError
from corerl.trainer.restarts import Restarts
from corerl.trainer.stopping import Stopping


def test_a_runs_folder_is_locked_until_the_run_ends_however_often_its_workers_start(tmp_path):
    plan = SimpleNamespace(config=TrainConfig(ModelConfig("m")), sampler=SimpleNamespace(state_dict=dict))
    folder = tmp_path / "runs" / "first"
    with ExitStack() as stack:
        restarts = Restarts(plan, Stopping(), stack)
        for _ in range(2):
            restarts.take(folder)
            with pytest.raises(ConfigError, match="another process is training in"), taken(folder):
                pytest.fail("two processes may not train in a folder")
    with taken(folder):
        pass
